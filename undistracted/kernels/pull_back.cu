using Out = Weight<2 * ZP, N>;
using Hidden = Weight<N, D>;
using GateX = Weight<D, N>;
using GateH = Weight<D, D>;
using Inputs = Weight<N, ZP + AP>;

// In the order of their use; of the gates, candidate, update, reset.
constexpr int WEIGHTS = Out::size + Hidden::size + 3 * GateX::size + Inputs::size + 3 * GateH::size;
constexpr int OWN = Exact<TD>::size + 2 * Stash<TD>::size;

__device__ inline void bring_weights(Ring<OWN>& ring, const uint2* weights) {
    for (int t = 0; t < H; t++) {
        const uint2* next = weights;
        ring.bring_weight<Out>(next);
        ring.bring_weight<Hidden>(next);
        for (int i = 0; i < 3; i++) ring.bring_weight<GateX>(next);
        ring.bring_weight<Inputs>(next);
        for (int i = 0; i < 3; i++) ring.bring_weight<GateH>(next);
    }
}

// Of T tiles of the belief from `first` on: from the gradient of the new belief, in `whole`, that of the sums of
// candidate, update and reset. The old belief's own part of it takes its place.
template <int T>
__device__ inline void gates_back(const Place& at, Sums<TD>& whole, int first, const bf16* kept, const bf16* before,
                                  Tiles<TD>& by_new, Stash<TD>& by_update, Stash<TD>& by_reset) {
    Tiles<T> reset, update, candidate, old, belief;
    kept += first * 8;
    at.load<T>(reset, kept, 4 * D), at.load<T>(update, kept + D, 4 * D);
    at.load<T>(candidate, kept + 2 * D, 4 * D), at.load<T>(old, kept + 3 * D, 4 * D);
    at.load<T>(belief, before + first * 8, F);
#pragma unroll
    for (int j = 0; j < T; j++) {
        float by[3][4];
#pragma unroll
        for (int e = 0; e < 4; e++) {
            auto number = [&](const Tiles<T>& x) { return e % 2 ? high(x[j][e / 2]) : low(x[j][e / 2]); };
            float& g = whole[first + j][e];
            const float r = number(reset), u = number(update), c = number(candidate);
            by[0][e] = g * (1 - u) * (1 - c * c);
            by[1][e] = g * (number(belief) - c) * u * (1 - u);
            by[2][e] = by[0][e] * number(old) * r * (1 - r);
            g *= u;
        }
        by_new[first + j][0] = rounded(by[0][0], by[0][1]), by_new[first + j][1] = rounded(by[0][2], by[0][3]);
        by_update.put(first + j, rounded(by[1][0], by[1][1]), rounded(by[1][2], by[1][3]));
        by_reset.put(first + j, rounded(by[2][0], by[2][1]), rounded(by[2][2], by[2][3]));
    }
}

// What the three gates' gradients, of which `by` is the candidate's, give to their inputs.
template <class W>
__device__ inline void by_gates(Ring<OWN>& ring, Tiles<TD>& by, const Stash<TD>& update, const Stash<TD>& reset,
                                Sums<W::tiles>& sums) {
#pragma unroll 1
    for (int i = 0; i < 3; i++) {
        if (i) (i == 1 ? update : reset).get(by);
        ring.multiply<W>(by, sums);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    pull_back(const bf16* gradient, const bf16* features, const bf16* inputs, const bf16* gates, const bf16* hidden,
              const bf16* spread, const uint2* weights, float* pull) {
    Ring<OWN> ring(memory);
    __syncthreads();
    if (threadIdx.x >= CREW) {
        if (threadIdx.x == CREW) bring_weights(ring, weights + blockIdx.y * WEIGHTS);
        return;
    }
    const Place at(n);
    Exact<TD> by_belief(memory);  // of the latent that the last step left, as is by_state
    Stash<TD> by_update((char*)memory + Exact<TD>::size), by_reset((char*)memory + Exact<TD>::size + Stash<TD>::size);
    Sums<TZ> by_state;
    clear(by_state);
    for (int j = 0; j < TD; j++) by_belief.put(j, {0, 0, 0, 0});
#pragma unroll 1
    for (int t = H - 1; t >= 0; t--) {
        const long long from = ((long long)at.seed * H + t) * n;
        Tiles<TD> by_new;
        {
            Tiles<TN> y;
            // Back through the state's sample and the prior.
            {
                Tiles<2 * TZ> out;
                Tiles<TZ> g, slope;
                at.load<TZ>(g, gradient + from * F + D, F), at.load<TZ>(slope, spread + from * ZP, ZP);
                each<TZ>([&](int j, int half, int e) {
                    const float x = by_state[j][e] + low(g[j][half]), y = by_state[j][e + 1] + high(g[j][half]);
                    out[j][half] = rounded(x, y);
                    out[TZ + j][half] = rounded(x * low(slope[j][half]), y * high(slope[j][half]));
                });
                Sums<TN> sums;
                clear(sums);
                ring.multiply<Out>(out, sums);
                at.load<TN>(y, hidden + from * N, N);
                blame_sums(y, sums);
            }
            // Back through the gates.
            Sums<TD> whole;
            {
                Tiles<TD> g;
                at.load<TD>(g, gradient + from * F, F);
                each<TD>([&](int j, int half, int e) {
                    if (half == 0) by_belief.get(j, whole[j]);
                    whole[j][e] += low(g[j][half]), whole[j][e + 1] += high(g[j][half]);
                });
            }
            ring.multiply<Hidden>(y, whole);
            const bf16 *kept = gates + from * 4 * D, *before = features + (from + at.seed * n) * F;
#pragma unroll
            for (int first = 0; first < TD / 4 * 4; first += 4)
                gates_back<4>(at, whole, first, kept, before, by_new, by_update, by_reset);
            if constexpr (TD % 4 > 0)
                gates_back<TD % 4>(at, whole, TD / 4 * 4, kept, before, by_new, by_update, by_reset);
#pragma unroll
            for (int j = 0; j < TD; j++) by_belief.put(j, whole[j]);
        }
        {
            Tiles<TN> y;
            {
                Sums<TN> sums;
                clear(sums);
                Tiles<TD> by, reset;
                at.load<TD>(reset, gates + from * 4 * D, 4 * D);  // it stands before the old belief's part
                each<TD>([&](int j, int half, int) {
                    by[j][half] = by_new[j][half];
                    by_new[j][half] = rounded(low(by_new[j][half]) * low(reset[j][half]),
                                              high(by_new[j][half]) * high(reset[j][half]));
                });
                by_gates<GateX>(ring, by, by_update, by_reset, sums);
                at.load<TN>(y, inputs + from * N, N);
                blame_sums(y, sums);
            }
            // Back to the state and the action before.
            Sums<TZ + TA> sums;
            clear(sums);
            ring.multiply<Inputs>(y, sums);
            each<TZ>([&](int j, int half, int e) {
                by_state[j][e] = sums[j][e], by_state[j][e + 1] = sums[j][e + 1];
            });
            each<TA>([&](int j, int half, int e) {
                for (int k = 0; k < 2; k++)
                    if (column<TA>(j) + k < A && at.has(half))
                        pull[(from + at.row(half)) * A + column<TA>(j) + k] = sums[TZ + j][e + k];
            });
        }
        Sums<TD> sums;
#pragma unroll
        for (int j = 0; j < TD; j++) by_belief.get(j, sums[j]);
        by_gates<GateH>(ring, by_new, by_update, by_reset, sums);
#pragma unroll
        for (int j = 0; j < TD; j++) by_belief.put(j, sums[j]);
    }
}
