"""What an update spends most of its time on, as CUDA kernels of our own.

They take a few rows through all layers and steps of a network while XLA would write every layer's values to the GPU's
memory and wait for each kernel. The plain functions that they replace stay: they are what the kernels are tested
against, and what runs where there are no kernels: on a CPU, in float32, at sizes that nobody trains at.
"""
