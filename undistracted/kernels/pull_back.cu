using Out = Weight<2 * ZP, N>;
using Hidden = Weight<N, D>;
using GateX = Weight<D, N>;
using GateH = Weight<D, D>;
using Inputs = Weight<N, ZP + AP>;

// In the order of their use; of the gates, candidate, update, reset.
constexpr int WEIGHTS = Out::size + Hidden::size + 3 * GateX::size + Inputs::size + 3 * GateH::size;
using Layer = Rows<larger(larger(TD, TN), 2 * TZ)>;
constexpr int OWN = up(Exact<TD>::size + 3 * Layer::size, 128);

__device__ inline void bring_weights(Ring<OWN>& ring, const uint2* weights) {
#pragma unroll 1
    for (int t = 0; t < H; t++) {
        const uint2* next = weights;
        ring.bring_weight<Out>(next);
        ring.bring_weight<Hidden>(next);
#pragma unroll 1
        for (int i = 0; i < 3; i++) ring.bring_weight<GateX>(next);
        ring.bring_weight<Inputs>(next);
#pragma unroll 1
        for (int i = 0; i < 3; i++) ring.bring_weight<GateH>(next);
    }
}

// From the gradient of the new belief, in `whole`, that of the sums of candidate, update and reset; the old belief's own
// part of it is kept.
__device__ inline void gates_back(const Place& at, const Sums<TD>& whole, const bf16* kept, const bf16* before,
                                  const Exact<TD>& by_belief, const Layer (&by)[3]) {
    by_fours<TD>([&](int i, Tiles<4>& reset) {
        Tiles<4> update, candidate, old, belief, of[3] = {};
        at.load<TD>(reset, i, kept, 4 * D), at.load<TD>(update, i, kept + D, 4 * D);
        at.load<TD>(candidate, i, kept + 2 * D, 4 * D), at.load<TD>(old, i, kept + 3 * D, 4 * D);
        at.load<TD>(belief, i, before, F);
#pragma unroll
        for (int j = 0; j < 4 && i + j < TD; j++) {
            float of_new[4], of_update[4], of_reset[4], rest[4];
#pragma unroll
            for (int e = 0; e < 4; e++) {
                auto number = [&](const Tiles<4>& x) { return e % 2 ? high(x[j][e / 2]) : low(x[j][e / 2]); };
                const float g = whole[i + j][e], r = number(reset), u = number(update), c = number(candidate);
                of_new[e] = g * (1 - u) * (1 - c * c);
                of_update[e] = g * (number(belief) - c) * u * (1 - u);
                of_reset[e] = of_new[e] * number(old) * r * (1 - r);
                rest[e] = g * u;
            }
            by_belief.put(i + j, rest);
#pragma unroll
            for (int half = 0; half < 2; half++) {
                const int e = 2 * half;
                of[0][j][half] = rounded(of_new[e], of_new[e + 1]);
                of[1][j][half] = rounded(of_update[e], of_update[e + 1]);
                of[2][j][half] = rounded(of_reset[e], of_reset[e + 1]);
            }
        }
#pragma unroll
        for (int k = 0; k < 3; k++) by[k].put(of[k], i);
    });
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
    char* const place = (char*)memory;
    const Exact<TD> by_belief(place);  // of the latent that the last step left, as is by_state
    char* const layers = place + Exact<TD>::size;
    const Layer by[3] = {layers, layers + Layer::size, layers + 2 * Layer::size}, &y = by[0];
    Sums<TZ> by_state;
    clear(by_state);
    for (int j = 0; j < TD; j++) by_belief.put(j, {0, 0, 0, 0});
#pragma unroll 1
    for (int t = H - 1; t >= 0; t--) {
        const long long from = ((long long)at.seed * H + t) * n;
        if (t > 0) {
            const long long before = from - n;
            at.expect(gradient + before * F, F), at.expect(hidden + before * N, N), at.expect(inputs + before * N, N);
            at.expect(gates + before * 4 * D, 4 * D), at.expect(spread + before * ZP, ZP);
            at.expect(features + (before + at.seed * n) * F, F);
        }
        // Back through the state's sample and the prior.
        by_fours<TZ>([&](int i, Tiles<4>& g) {
            Tiles<4> slope;
            at.load<TZ>(g, i, gradient + from * F + D, F), at.load<TZ>(slope, i, spread + from * ZP, ZP);
#pragma unroll
            for (int j = 0; j < 4 && i + j < TZ; j++) {
                unsigned mean[2], raw[2];
#pragma unroll
                for (int half = 0; half < 2; half++) {
                    const float a = by_state[i + j][2 * half] + low(g[j][half]);
                    const float b = by_state[i + j][2 * half + 1] + high(g[j][half]);
                    mean[half] = rounded(a, b), raw[half] = rounded(a * low(slope[j][half]), b * high(slope[j][half]));
                }
                y.put_tile(i + j, mean[0], mean[1]), y.put_tile(TZ + i + j, raw[0], raw[1]);
            }
        });
        {
            Sums<TN> sums;
            clear(sums);
            ring.multiply<Out>(y, sums);
            by_fours<TN>([&](int i, Tiles<4>& x) {
                at.load<TN>(x, i, hidden + from * N, N), blame_sums(x, i, sums), y.put(x, i);
            });
        }
        // Back through the gates.
        const bf16* const kept = gates + from * 4 * D;
        {
            Sums<TD> whole;
            by_fours<TD>([&](int i, Tiles<4>& g) {
                at.load<TD>(g, i, gradient + from * F, F);
#pragma unroll
                for (int j = 0; j < 4 && i + j < TD; j++) {
                    by_belief.get(i + j, whole[i + j]);
                    whole[i + j][0] += low(g[j][0]), whole[i + j][1] += high(g[j][0]);
                    whole[i + j][2] += low(g[j][1]), whole[i + j][3] += high(g[j][1]);
                }
            });
            ring.multiply<Hidden>(y, whole);
            gates_back(at, whole, kept, features + (from + at.seed * n) * F, by_belief, by);
        }
        // Back to the state and the action before.
        {
            Tiles<TN> x;
            {
                Sums<TN> sums;
                clear(sums);
#pragma unroll 1
                for (int k = 0; k < 3; k++) ring.multiply<GateX>(Layer(layers + k * Layer::size), sums);
                by_fours<TN>([&](int i, Tiles<4>& four) {
                    at.load<TN>(four, i, inputs + from * N, N), blame_sums(four, i, sums);
#pragma unroll
                    for (int j = 0; j < 4 && i + j < TN; j++) x[i + j][0] = four[j][0], x[i + j][1] = four[j][1];
                });
            }
            Sums<TZ + TA> sums;
            clear(sums);
            ring.multiply_held<Inputs>(x, sums);
            each<TZ>([&](int j, int half, int e) {
                by_state[j][e] = sums[j][e], by_state[j][e + 1] = sums[j][e + 1];
            });
            each<TA>([&](int j, int half, int e) {
                for (int k = 0; k < 2; k++)
                    if (column<TA>(j) + k < A)
                        pull[(from + at.row(half)) * A + column<TA>(j) + k] = sums[TZ + j][e + k];
            });
        }
        // And to the belief before, of which the candidate has what the reset left.
        by_fours<TD>([&](int i, Tiles<4>& reset) {
            Tiles<4> x = {};
            at.load<TD>(reset, i, kept, 4 * D), by[0].get(x, i);
#pragma unroll
            for (int j = 0; j < 4; j++)
#pragma unroll
                for (int half = 0; half < 2; half++)
                    x[j][half] =
                        rounded(low(x[j][half]) * low(reset[j][half]), high(x[j][half]) * high(reset[j][half]));
            by[0].put(x, i);
        });
        Sums<TD> sums;
#pragma unroll
        for (int j = 0; j < TD; j++) by_belief.get(j, sums[j]);
#pragma unroll 1
        for (int k = 0; k < 3; k++) ring.multiply<GateH>(Layer(layers + k * Layer::size), sums);
#pragma unroll
        for (int j = 0; j < TD; j++) by_belief.put(j, sums[j]);
    }
}
