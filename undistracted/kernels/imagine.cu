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

constexpr int FOURS = TD / 4, REST = TD % 4;  // tiles of the belief are taken four at a time
constexpr int GATES = FOURS * (GatesX<4>::size + GatesH<4>::size) + (REST ? GatesX<REST>::size + GatesH<REST>::size : 0);
constexpr int WEIGHTS = Policy::size + 3 * PolicyNext::size + PolicyOut::size + Inputs::size + GATES + Hidden::size +
                        Out::size;
constexpr int B_OUT = 4 * M, B_INPUTS = B_OUT + 2 * AP, B_GATES = B_INPUTS + N, B_HIDDEN = B_GATES + 4 * D,
              B_PRIOR = B_HIDDEN + N, BIASES = B_PRIOR + 2 * ZP;
constexpr int OWN = up(Exact<TD>::size + BIASES * 4, 128);

// The GRU's new belief for T of its tiles from `first` on, in place of the old. What its gradient needs is kept: reset,
// update, candidate, and the candidate's part of the old belief, (row, 4, D).
template <int T>
__device__ void gru(Ring<OWN>& ring, const Place& at, const Tiles<TN>& x, const Tiles<TD>& h, Exact<TD>& belief,
                    int first, const float* bias, bf16* kept) {
    Sums<4 * T> sums;  // of reset, update, the candidate's part of the inputs, that of the belief
#pragma unroll
    for (int gate = 0; gate < 4; gate++)
#pragma unroll
        for (int j = 0; j < T; j++) {
            const float2 b = *(const float2*)(bias + gate * D + first * 8 + column<T>(j));
            float(&sum)[4] = sums[gate * T + j];
            sum[0] = sum[2] = b.x, sum[1] = sum[3] = b.y;
        }
    ring.multiply<GatesX<T>>(x, [&](int tile) -> float(&)[4] { return sums[tile]; });
    ring.multiply<GatesH<T>>(h, [&](int tile) -> float(&)[4] { return sums[tile < 2 * T ? tile : tile + T]; });
    Tiles<4 * T> gates;
#pragma unroll
    for (int j = 0; j < T; j++) {
        float now[4], r[4], u[4], candidate[4];
        belief.get(first + j, now);
#pragma unroll
        for (int e = 0; e < 4; e++) {
            r[e] = sigmoid(sums[j][e]), u[e] = sigmoid(sums[T + j][e]);
            candidate[e] = hyperbolic(sums[2 * T + j][e] + r[e] * sums[3 * T + j][e]);
            now[e] = (1 - u[e]) * candidate[e] + u[e] * now[e];
        }
        belief.put(first + j, now);
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int e = 2 * half;
            gates[j][half] = rounded(r[e], r[e + 1]), gates[T + j][half] = rounded(u[e], u[e + 1]);
            gates[2 * T + j][half] = rounded(candidate[e], candidate[e + 1]);
            gates[3 * T + j][half] = rounded(sums[3 * T + j][e], sums[3 * T + j][e + 1]);
        }
    }
    kept += first * 8;
    at.store<T>(gates, kept, 4 * D), at.store<T, T>(gates, kept + D, 4 * D);
    at.store<T, 2 * T>(gates, kept + 2 * D, 4 * D), at.store<T, 3 * T>(gates, kept + 3 * D, 4 * D);
}

// Two neighbours of a row of floats; of a place beyond the last, the last ones.
__device__ inline float2 two(const float* row, int place, int width) {
    const int last = place + 1 < width ? place + 1 : width - 1;
    return float2{__ldg(row + min(place, width - 1)), __ldg(row + last)};
}

__device__ inline void bring_weights(Ring<OWN>& ring, const uint2* weights) {
    for (int t = 0; t < H; t++) {
        const uint2* next = weights;
        ring.bring_weight<Policy>(next);
        for (int i = 0; i < 3; i++) ring.bring_weight<PolicyNext>(next);
        ring.bring_weight<PolicyOut>(next);
        ring.bring_weight<Inputs>(next);
        for (int i = 0; i < FOURS; i++) ring.bring_weight<GatesX<4>>(next), ring.bring_weight<GatesH<4>>(next);
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
    float* const bias = (float*)((char*)memory + Exact<TD>::size);
    copy(bias, biases + blockIdx.y * BIASES, BIASES);
    __syncthreads();
    if (threadIdx.x >= CREW) {
        if (threadIdx.x == CREW) bring_weights(ring, weights + blockIdx.y * WEIGHTS);
        return;
    }
    const Place at(n);
    Exact<TD> belief(memory);
    Tiles<TZ> state;
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
#pragma unroll 1
    for (int t = 0; t < H; t++) {
        const long long from = ((long long)at.seed * H + t) * n;
        Tiles<TM> y;
        {
            Tiles<TF> x;
            belief.get(x);
            each<TZ>([&](int j, int half, int) { x[TD + j][half] = state[j][half]; });
            bf16* to = features + (from + at.seed * n) * F;
            at.store<TD>(x, to, F), at.store<TZ, TD>(x, to + D, F);
            // The policy acts.
            Sums<TM> sums;
            begin(sums, bias);
            ring.multiply<Policy>(x, sums);
            elu(y, sums);
        }
        at.store<TM>(y, p1 + from * M, M);
        bf16* const policy[3] = {p2, p3, p4};
#pragma unroll 1
        for (int i = 0; i < 3; i++) {
            Sums<TM> sums;
            begin(sums, bias + (i + 1) * M);
            ring.multiply<PolicyNext>(y, sums);
            elu(y, sums);
            at.store<TM>(y, policy[i] + from * M, M);
        }
        Tiles<TZ + TA> moved;
        {
            Sums<2 * TA> sums;
            clear(sums);
            ring.multiply<PolicyOut>(y, sums);
            each<TA>([&](int j, int half, int e) {
                const int action = column<TA>(j);
                const float2 noise = two(action_noise + (from + at.row(half)) * A, action, A);
                float* to = out + (from + at.row(half)) * 2 * A + action;
                float acted[2];
                for (int k = 0; k < 2; k++) {
                    const float mean = sums[j][e + k] + bias[B_OUT + action + k];
                    const float raw = sums[TA + j][e + k] + bias[B_OUT + AP + action + k];
                    if (action + k < A && at.has(half)) to[k] = mean, to[A + k] = raw;
                    const float deviation = softplus(raw + STD_SHIFT) + MIN_STD;
                    acted[k] = hyperbolic(5 * hyperbolic(mean / 5) + deviation * (k ? noise.y : noise.x));
                    if (action + k >= A) acted[k] = 0;
                }
                moved[TZ + j][half] = rounded(acted[0], acted[1]);
            });
            each<TZ>([&](int j, int half, int) { moved[j][half] = state[j][half]; });
        }
        // The belief moves on.
        {
            Tiles<TN> x;
            Sums<TN> sums;
            begin(sums, bias + B_INPUTS);
            ring.multiply<Inputs>(moved, sums);
            elu(x, sums);
            at.store<TN>(x, inputs + from * N, N);
            Tiles<TD> h;
            belief.get(h);
            bf16* kept = gates + from * 4 * D;
#pragma unroll 1
            for (int i = 0; i < FOURS; i++) gru<4>(ring, at, x, h, belief, 4 * i, bias + B_GATES, kept);
            if constexpr (REST > 0) gru<REST>(ring, at, x, h, belief, 4 * FOURS, bias + B_GATES, kept);
        }
        // The prior tells the state.
        Tiles<TN> x;
        {
            Tiles<TD> h;
            belief.get(h);
            Sums<TN> sums;
            begin(sums, bias + B_HIDDEN);
            ring.multiply<Hidden>(h, sums);
            elu(x, sums);
        }
        at.store<TN>(x, hidden + from * N, N);
        Sums<2 * TZ> sums;
        clear(sums);
        ring.multiply<Out>(x, sums);
        Tiles<TZ> slopes;
        each<TZ>([&](int j, int half, int e) {
            const int place = column<TZ>(j);
            const float2 noise = two(state_noise + (from + at.row(half)) * Z, place, Z);
            float sample[2], slope[2];
            for (int k = 0; k < 2; k++) {
                const float mean = sums[j][e + k] + bias[B_PRIOR + place + k];
                const float raw = sums[TZ + j][e + k] + bias[B_PRIOR + ZP + place + k];
                sample[k] = mean + (softplus(raw) + 0.1f) * (k ? noise.y : noise.x);
                slope[k] = (k ? noise.y : noise.x) * sigmoid(raw);
            }
            state[j][half] = place < Z ? rounded(sample[0], sample[1]) : 0;
            slopes[j][half] = place < Z ? rounded(slope[0], slope[1]) : 0;
        });
        at.store<TZ>(slopes, spread + from * ZP, ZP);
    }
    Tiles<TF> x;
    belief.get(x);
    each<TZ>([&](int j, int half, int) { x[TD + j][half] = state[j][half]; });
    bf16* to = features + ((long long)at.seed * (H + 1) + H) * n * F;
    at.store<TD>(x, to, F), at.store<TZ, TD>(x, to + D, F);
}
