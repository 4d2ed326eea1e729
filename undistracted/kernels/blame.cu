using Out = Weight<2 * A, M>;
using Next = Weight<M, M>;

constexpr int WEIGHTS = Out::size + 3 * Next::size, TO = Out::slabs * 2;
using Layer = Rows<larger(TM, TO)>;

// Gradients of the sums of the policy's hidden layers, the last one's first, from that of its outputs.
extern "C" __global__ void __launch_bounds__(THREADS, 1)
    blame(const float* by_out, const bf16* p1, const bf16* p2, const bf16* p3, const bf16* p4, const uint2* weights,
          bf16* s1, bf16* s2, bf16* s3, bf16* s4) {
    Ring<Layer::size> ring(memory);
    __syncthreads();
    if (threadIdx.x >= CREW) {
        weights += blockIdx.y * WEIGHTS;
        if (threadIdx.x > CREW) return;
        ring.bring_weight<Out>(weights);
#pragma unroll 1
        for (int i = 0; i < 3; i++) ring.bring_weight<Next>(weights);
        return;
    }
    const Place at(H * n);
    const long long from = (long long)at.seed * H * n;
    const Layer y(memory);
    const bf16* const outputs[4] = {p4, p3, p2, p1};
    bf16* const to[4] = {s4, s3, s2, s1};
    for (int i = 0; i < 4; i++) at.expect(outputs[i] + from * M, M);
#pragma unroll
    for (int j = 0; j < TO; j++) {
        const int place = j * 8 + threadIdx.x % 4 * 2;
        unsigned pair[2];
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const float2 by = __ldg((const float2*)(by_out + (from + at.row(half)) * 2 * A + min(place, 2 * A - 2)));
            pair[half] = place < 2 * A ? rounded(by.x, by.y) : 0;
        }
        y.put_tile(j, pair[0], pair[1]);
    }
    Sums<TM> sums;
    clear(sums);
    ring.multiply<Out>(y, sums);
#pragma unroll 1
    for (int i = 0;; i++) {
        by_fours<TM>([&](int k, Tiles<4>& x) {
            at.load<TM>(x, k, outputs[i] + from * M, M), blame_sums(x, k, sums);
            y.put(x, k), at.store<TM>(x, k, to[i] + from * M, M);
        });
        if (i == 3) break;
        clear(sums);
        ring.multiply<Next>(y, sums);
    }
}
