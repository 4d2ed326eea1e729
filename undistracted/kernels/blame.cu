struct Policy {
    using Out = Weight<2 * A, M>;
    using Next = Weight<M, M>;
    static constexpr int next = Out::size, size = next + 3 * Next::size;
};

constexpr int BS = apart(2 * A), BLAME_MEMORY = ROWS * (BS + 2 * MS) * 2;

// Gradients of the sums of the hidden layers, the last one's first, from that of the outputs.
extern "C" __global__ void __launch_bounds__(THREADS, 1)
    blame(const float* by_out, const bf16* p1, const bf16* p2, const bf16* p3, const bf16* p4, const uint2* weights,
          bf16* s1, bf16* s2, bf16* s3, bf16* s4) {
    const Place at(H * n);
    const long long from = (long long)at.seed * H * n + at.first;
    bf16 *out = (bf16*)memory, *a = out + ROWS * BS, *b = a + ROWS * MS;
    clear(BLAME_MEMORY);
    weights += at.seed * Policy::size;
    for (int i = threadIdx.x; i < at.rows * 2 * A; i += THREADS)
        put(out + i / (2 * A) * BS + i % (2 * A), __ldg(by_out + from * 2 * A + i));
    __syncthreads();
    auto kept = [&](const bf16* outputs) {
        return [=](int row, int column) { return at.pair(outputs + from * M, M, row, column); };
    };
    auto back = [&](bf16* to) {
        return [=](int row, int column, float x, float y, unsigned pair) {
            if (column < M) put(to + row * MS + column, x * elu_slope(low(pair)), y * elu_slope(high(pair)));
        };
    };
    layer<Policy::Out>(at, out, BS, weights, kept(p4), back(a));
    const bf16* const outputs[3] = {p3, p2, p1};
    bf16* const sums[4] = {s4, s3, s2, s1};
#pragma unroll 1
    for (int i = 0; i < 3; i++) {
        bf16 *source = i % 2 ? b : a, *to = i % 2 ? a : b;
        __syncthreads();
        store<M>(sums[i] + from * M, source, MS, at.rows);
        layer<Policy::Next>(at, source, MS, weights + Policy::next + i * Policy::Next::size, kept(outputs[i]),
                            back(to));
    }
    __syncthreads();
    store<M>(sums[3] + from * M, b, MS, at.rows);
}
