"""Test-time adaptation: a new look, no rewards, and only the encoder moves.

adapt(preset_adapt("runs/walker-walk-repo-s0", "distracted/walker-walk", videos="clips/"))
"""
