using Policy = Weight<F, M>;
using PolicyNext = Weight<M, M>;
using PolicyOut = Weight<M, 2 * AP>;
using Inputs = Weight<ZP + AP, N>;
using Hidden = Weight<D, N>;
using Out = Weight<N, 2 * ZP>;
// Of T tiles of the belief: its reset's, update's and candidate's columns.
template <int T>
using GatesX = Weight<N, 3 * 8 * T>;
template <int T>
using GatesH = Weight<D, 3 * 8 * T>;

// Tiles of the belief are taken eight at a time, the last ones with one more if it would be left alone.
constexpr int LEFT = TD % 8, EIGHTS = TD / 8 - (TD > 8 && LEFT == 1), REST = TD - 8 * EIGHTS;
constexpr int GATES =
    EIGHTS * (GatesX<8>::size + GatesH<8>::size) + (REST ? GatesX<REST>::size + GatesH<REST>::size : 0);
constexpr int WEIGHTS = Policy::size + 3 * PolicyNext::size + PolicyOut::size + Inputs::size + GATES + Hidden::size +
                        Out::size;
constexpr int B_OUT = 4 * M, B_INPUTS = B_OUT + 2 * AP, B_GATES = B_INPUTS + N, B_HIDDEN = B_GATES + 4 * D,
              B_PRIOR = B_HIDDEN + N, BIASES = B_PRIOR + 2 * ZP;
constexpr int WIDE = larger(larger(TM, TN), TZ + TA);
constexpr int OWN = up(Exact<TD>::size + Rows<TF>::size + Rows<WIDE>::size + BIASES * 4, 128);

// The GRU's new belief for T of its tiles from `first` on, in place of the old. What its gradient needs is kept: reset,
// update, candidate, and the candidate's part of the old belief, (row, 4, D).
template <int T>
__device__ void gru(Ring<OWN>& ring, const Place& at, const Rows<WIDE>& x, const Rows<TF>& h, const Exact<TD>& belief,
                    int first, const float* bias, bf16* kept) {
    Sums<4 * T> sums;  // of reset, update, the candidate's part of the inputs, that of the belief
    clear(sums);
    ring.multiply<GatesX<T>>(x, [&](int tile) -> float(&)[4] { return sums[tile]; });
    ring.multiply<GatesH<T>>(h, [&](int tile) -> float(&)[4] { return sums[tile < 2 * T ? tile : tile + T]; });
    kept += first * 8, bias += first * 8;
    by_fours<T>([&](int i, Tiles<4>& reset) {
        Tiles<4> update, candidate, old;
#pragma unroll
        for (int j = 0; j < 4 && i + j < T; j++) {
            float now[4], r[4], u[4], c[4], o[4];
            belief.get(first + i + j, now);
            const float* b = bias + column<T>(i + j);
            const float2 by_r = *(const float2*)b, by_u = *(const float2*)(b + D);
            const float2 by_c = *(const float2*)(b + 2 * D), by_o = *(const float2*)(b + 3 * D);
#pragma unroll
            for (int e = 0; e < 4; e++) {
                auto sum = [&](int gate, float2 b) { return sums[gate * T + i + j][e] + (e % 2 ? b.y : b.x); };
                r[e] = sigmoid(sum(0, by_r)), u[e] = sigmoid(sum(1, by_u)), o[e] = sum(3, by_o);
                c[e] = hyperbolic(sum(2, by_c) + r[e] * o[e]);
                now[e] = (1 - u[e]) * c[e] + u[e] * now[e];
            }
            belief.put(first + i + j, now);
#pragma unroll
            for (int half = 0; half < 2; half++) {
                const int e = 2 * half;
                reset[j][half] = rounded(r[e], r[e + 1]), update[j][half] = rounded(u[e], u[e + 1]);
                candidate[j][half] = rounded(c[e], c[e + 1]), old[j][half] = rounded(o[e], o[e + 1]);
            }
        }
        at.store<T>(reset, i, kept, 4 * D), at.store<T>(update, i, kept + D, 4 * D);
        at.store<T>(candidate, i, kept + 2 * D, 4 * D), at.store<T>(old, i, kept + 3 * D, 4 * D);
    });
}

// Two neighbours of a row of floats; of a place beyond the last, the last ones.
__device__ inline float2 two(const float* row, int place, int width) {
    const int last = place + 1 < width ? place + 1 : width - 1;
    return float2{__ldg(row + min(place, width - 1)), __ldg(row + last)};
}

__device__ inline void bring_weights(Ring<OWN>& ring, const uint2* weights) {
#pragma unroll 1
    for (int t = 0; t < H; t++) {
        const uint2* next = weights;
        ring.bring_weight<Policy>(next);
#pragma unroll 1
        for (int i = 0; i < 3; i++) ring.bring_weight<PolicyNext>(next);
        ring.bring_weight<PolicyOut>(next);
        ring.bring_weight<Inputs>(next);
#pragma unroll 1
        for (int i = 0; i < EIGHTS; i++) ring.bring_weight<GatesX<8>>(next), ring.bring_weight<GatesH<8>>(next);
        if constexpr (REST > 0) ring.bring_weight<GatesX<REST>>(next), ring.bring_weight<GatesH<REST>>(next);
        ring.bring_weight<Hidden>(next);
        ring.bring_weight<Out>(next);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    imagine(const float* start_belief, const float* start_state, const float* action_noise, const float* state_noise,
            const uint2* weights, const float* biases, bf16* features, float* out, bf16* p1, bf16* p2, bf16* p3,
            bf16* p4, bf16* inputs, bf16* gates, bf16* hidden, bf16* spread) {
    Ring<OWN> ring(memory);
    char* const place = (char*)memory;
    float* const bias = (float*)(place + Exact<TD>::size + Rows<TF>::size + Rows<WIDE>::size);
    copy(bias, biases + blockIdx.y * BIASES, BIASES);
    __syncthreads();
    if (threadIdx.x >= CREW) {
        if (threadIdx.x == CREW) bring_weights(ring, weights + blockIdx.y * WEIGHTS);
        return;
    }
    const Place at(n);
    const Exact<TD> belief(place);
    const Rows<TF> latent(place + Exact<TD>::size);
    const Rows<WIDE> y(place + Exact<TD>::size + Rows<TF>::size);  // one layer's outputs, then the next one's
    Tiles<TZ> state;
    // The latent as the next products take it, and for others to see.
    auto round_belief = [&](bf16* to) {
        by_fours<TD>([&](int i, Tiles<4>& h) {
#pragma unroll
            for (int j = 0; j < 4 && i + j < TD; j++) {
                float now[4];
                belief.get(i + j, now);
                h[j][0] = rounded(now[0], now[1]), h[j][1] = rounded(now[2], now[3]);
            }
            latent.put(h, i), at.store<TD>(h, i, to, F);
        });
    };
    auto put_state = [&](bf16* to) {
        by_fours<TZ>([&](int i, Tiles<4>& z) {
#pragma unroll
            for (int j = 0; j < 4 && i + j < TZ; j++) z[j][0] = state[i + j][0], z[j][1] = state[i + j][1];
            at.store<TZ>(z, i, to + D, F);
        });
#pragma unroll
        for (int j = 0; j < TZ; j++) latent.put_tile(TD + j, state[j][0], state[j][1]);
        if (TF % 2) latent.put_tile(TF, 0, 0);
    };
    features += (long long)at.seed * (H + 1) * n * F;
#pragma unroll
    for (int j = 0; j < TD; j++) {
        float now[4];
        for (int half = 0; half < 2; half++) {
            const float2 b = two(start_belief + ((long long)at.seed * n + at.row(half)) * D, column<TD>(j), D);
            now[2 * half] = b.x, now[2 * half + 1] = b.y;
        }
        belief.put(j, now);
    }
    each<TZ>([&](int j, int half, int) {
        const float2 z = two(start_state + ((long long)at.seed * n + at.row(half)) * Z, column<TZ>(j), Z);
        state[j][half] = column<TZ>(j) < Z ? rounded(z.x, z.y) : 0;
    });
    round_belief(features), put_state(features);
#pragma unroll 1
    for (int t = 0; t < H; t++) {
        const long long from = ((long long)at.seed * H + t) * n;
        features += (long long)n * F;
        at.expect(action_noise + from * A, A), at.expect(state_noise + from * Z, Z);
        // The policy acts.
        {
            Sums<TM> sums;
            clear(sums);
            ring.multiply<Policy>(latent, sums);
            elu(at, sums, bias, y, p1 + from * M);
        }
        bf16* const policy[3] = {p2, p3, p4};
#pragma unroll 1
        for (int i = 0; i < 3; i++) {
            Sums<TM> sums;
            clear(sums);
            ring.multiply<PolicyNext>(y, sums);
            elu(at, sums, bias + (i + 1) * M, y, policy[i] + from * M);
        }
        {
            Sums<2 * TA> sums;
            clear(sums);
            ring.multiply<PolicyOut>(y, sums);
            Tiles<TA> acted;
            each<TA>([&](int j, int half, int e) {
                const int action = column<TA>(j);
                const float2 noise = two(action_noise + (from + at.row(half)) * A, action, A);
                float* to = out + (from + at.row(half)) * 2 * A + action;
                float act[2];
                for (int k = 0; k < 2; k++) {
                    const float mean = sums[j][e + k] + bias[B_OUT + action + k];
                    const float raw = sums[TA + j][e + k] + bias[B_OUT + AP + action + k];
                    if (action + k < A) to[k] = mean, to[A + k] = raw;
                    const float deviation = softplus(raw + STD_SHIFT) + MIN_STD;
                    act[k] = hyperbolic(5 * hyperbolic(mean / 5) + deviation * (k ? noise.y : noise.x));
                    if (action + k >= A) act[k] = 0;
                }
                acted[j][half] = rounded(act[0], act[1]);
            });
#pragma unroll
            for (int j = 0; j < TZ; j++) y.put_tile(j, state[j][0], state[j][1]);
#pragma unroll
            for (int j = 0; j < TA; j++) y.put_tile(TZ + j, acted[j][0], acted[j][1]);
            if ((TZ + TA) % 2) y.put_tile(TZ + TA, 0, 0);
        }
        // The belief moves on.
        {
            Sums<TN> sums;
            clear(sums);
            ring.multiply<Inputs>(y, sums);
            elu(at, sums, bias + B_INPUTS, y, inputs + from * N);
        }
        bf16* const kept = gates + from * 4 * D;
#pragma unroll 1
        for (int i = 0; i < EIGHTS; i++) gru<8>(ring, at, y, latent, belief, 8 * i, bias + B_GATES, kept);
        if constexpr (REST > 0) gru<REST>(ring, at, y, latent, belief, 8 * EIGHTS, bias + B_GATES, kept);
        round_belief(features);
        // The prior tells the state.
        {
            Sums<TN> sums;
            clear(sums);
            ring.multiply<Hidden>(latent, sums);
            elu(at, sums, bias + B_HIDDEN, y, hidden + from * N);
        }
        Sums<2 * TZ> sums;
        clear(sums);
        ring.multiply<Out>(y, sums);
        Tiles<TZ> slopes;
        each<TZ>([&](int j, int half, int e) {
            const int column_z = column<TZ>(j);
            const float2 noise = two(state_noise + (from + at.row(half)) * Z, column_z, Z);
            float sample[2], slope[2];
            for (int k = 0; k < 2; k++) {
                const float mean = sums[j][e + k] + bias[B_PRIOR + column_z + k];
                const float raw = sums[TZ + j][e + k] + bias[B_PRIOR + ZP + column_z + k];
                sample[k] = mean + (softplus(raw) + 0.1f) * (k ? noise.y : noise.x);
                slope[k] = (k ? noise.y : noise.x) * sigmoid(raw);
            }
            state[j][half] = column_z < Z ? rounded(sample[0], sample[1]) : 0;
            slopes[j][half] = column_z < Z ? rounded(slope[0], slope[1]) : 0;
        });
        put_state(features);
        by_fours<TZ>([&](int i, Tiles<4>& z) {
#pragma unroll
            for (int j = 0; j < 4 && i + j < TZ; j++) z[j][0] = slopes[i + j][0], z[j][1] = slopes[i + j][1];
            at.store<TZ>(z, i, spread + from * ZP, ZP);
        });
    }
}
