struct Dynamics {
    using Policy = Weight<F, M>;
    using PolicyNext = Weight<M, M>;
    using PolicyOut = Weight<M, 2 * AP, 1>;
    using Inputs = Weight<Z + A, N>;
    using GatesX = Weight<N, 3 * up(D, 8 * COLUMNS)>;  // a tile of each gate's columns next to each other
    using GatesH = Weight<D, 3 * up(D, 8 * COLUMNS)>;
    using Hidden = Weight<D, N>;
    using Out = Weight<N, 2 * ZP, 1>;
    static constexpr int policy_next = Policy::size, policy_out = policy_next + 3 * PolicyNext::size,
                         inputs = policy_out + PolicyOut::size, gates_x = inputs + Inputs::size,
                         gates_h = gates_x + GatesX::size, hidden = gates_h + GatesH::size, out = hidden + Hidden::size,
                         size = out + Out::size;
    static constexpr int b_out = 4 * M, b_inputs = b_out + 2 * AP, b_gates = b_inputs + N, b_hidden = b_gates + 4 * D,
                         b_prior = b_hidden + N, biases = b_prior + 2 * ZP;
};

constexpr int PS = MS > NS ? MS : NS;
constexpr int IMAGINE_MEMORY = ROWS * ((FS + XS + 2 * PS) * 2 + D * 4);

// The GRU's new belief for COUNT of a warp's tiles of columns, from its FROM-th on. What its gradient needs is kept:
// reset, update, candidate, and the candidate's part of the old belief.
template <int FROM, int COUNT>
__device__ void gru(const Place& at, const bf16* x, const bf16* h, float* belief, const uint2* weight,
                    const float* bias, bf16* kept) {
    using Y = Dynamics;
    const int tile = (at.columns + FROM * COLUMNS) * 3 * 32;
    float sums[3 * COUNT][MT][4] = {}, xn[COUNT][MT][4];
    multiply<3 * COUNT, Y::GatesX, 3 * COLUMNS, 3>(sums, x + at.row0 * PS, PS, weight + Y::gates_x + tile);
#pragma unroll
    for (int j = 0; j < COUNT; j++)
#pragma unroll
        for (int i = 0; i < MT; i++)
#pragma unroll
            for (int e = 0; e < 4; e++) xn[j][i][e] = sums[3 * j + 2][i][e], sums[3 * j + 2][i][e] = 0;
    multiply<3 * COUNT, Y::GatesH, 3 * COLUMNS, 3>(sums, h + at.row0 * FS, FS, weight + Y::gates_h + tile);
#pragma unroll
    for (int j = 0; j < COUNT; j++) {
        const int column = at.column(FROM + j);
        if (column >= D) continue;
        float add[4][2];
#pragma unroll
        for (int gate = 0; gate < 4; gate++)
#pragma unroll
            for (int k = 0; k < 2; k++) add[gate][k] = __ldg(bias + Y::b_gates + gate * D + column + k);
#pragma unroll
        for (int i = 0; i < MT; i++)
#pragma unroll
            for (int half = 0; half < 2; half++) {
                const int row = at.row(i, half);
                unsigned pairs[4];
#pragma unroll
                for (int k = 0; k < 2; k++) {
                    const int e = 2 * half + k;
                    const float r = sigmoid(sums[3 * j][i][e] + add[0][k]),
                                u = sigmoid(sums[3 * j + 1][i][e] + add[1][k]);
                    const float old = sums[3 * j + 2][i][e] + add[3][k];
                    const float candidate = hyperbolic(xn[j][i][e] + add[2][k] + r * old);
                    float& b = belief[row * D + column + k];
                    b = (1 - u) * candidate + u * b;
                    pairs[2 * k] = rounded(r, u), pairs[2 * k + 1] = rounded(candidate, old);
                }
                if (row < at.rows)
                    *(uint4*)(kept + (row * D + column) * 4) = uint4{pairs[0], pairs[1], pairs[2], pairs[3]};
            }
    }
}

// All tiles of columns, as many at a time as there are registers for.
template <int FROM = 0>
__device__ void all_gru(const Place& at, const bf16* x, const bf16* h, float* belief, const uint2* weight,
                        const float* bias, bf16* kept) {
    constexpr int AT_ONCE = MT == 1 ? 3 : MT == 2 ? 2 : 1, LEFT = up(D, 8 * COLUMNS) / 8 / COLUMNS - FROM;
    constexpr int COUNT = LEFT < AT_ONCE ? LEFT : AT_ONCE;
    gru<FROM, COUNT>(at, x, h, belief, weight, bias, kept);
    if constexpr (LEFT > COUNT) all_gru<FROM + COUNT>(at, x, h, belief, weight, bias, kept);
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    imagine(const float* start_belief, const float* start_state, const float* action_noise, const float* state_noise,
            const uint2* weights, const float* biases, bf16* features, float* out, bf16* p1, bf16* p2, bf16* p3,
            bf16* p4, bf16* inputs, bf16* gates, bf16* hidden, bf16* spread) {
    using Y = Dynamics;
    const Place at(n);
    bf16 *z = (bf16*)memory, *x = z + ROWS * FS, *a = x + ROWS * XS, *b = a + ROWS * PS;
    float* belief = (float*)(b + ROWS * PS);
    clear(IMAGINE_MEMORY);
    weights += at.seed * Y::size, biases += at.seed * Y::biases;
    for (int i = threadIdx.x; i < at.rows * D; i += THREADS) {
        belief[i] = start_belief[((long long)at.seed * n + at.first) * D + i];
        put(z + i / D * FS + i % D, belief[i]);
    }
    for (int i = threadIdx.x; i < at.rows * Z; i += THREADS) {
        const float state = start_state[((long long)at.seed * n + at.first) * Z + i];
        put(z + i / Z * FS + D + i % Z, state), put(x + i / Z * XS + i % Z, state);
    }
    __syncthreads();
    auto unit = [&](bf16* to, const float* bias, int units) {
        return [=](int row, int column, float u, float v) {
            if (column >= units) return;
            put(to + row * PS + column, elu(u + __ldg(bias + column)), elu(v + __ldg(bias + column + 1)));
        };
    };
    store<F>(features + ((long long)at.seed * (H + 1) * n + at.first) * F, z, FS, at.rows);
    for (int t = 0; t < H; t++) {
        const long long from = ((long long)at.seed * H + t) * n + at.first;
        // The policy acts.
        layer<Y::Policy>(at, z, FS, weights, unit(a, biases, M));
        __syncthreads();
        bf16* const policy[4] = {p1, p2, p3, p4};
#pragma unroll 1
        for (int i = 0; i < 3; i++) {
            bf16 *source = i % 2 ? b : a, *to = i % 2 ? a : b;
            store<M>(policy[i] + from * M, source, PS, at.rows);
            layer<Y::PolicyNext>(at, source, PS, weights + Y::policy_next + i * Y::PolicyNext::size,
                                 unit(to, biases + (i + 1) * M, M));
            __syncthreads();
        }
        store<M>(policy[3] + from * M, b, PS, at.rows);
        if (at.columns < AP / 8) {  // a warp has an action's mean as well as its deviation
            float sums[2][MT][4] = {}, noise[MT][4];
            for (int i = 0; i < MT; i++)
                for (int e = 0; e < 4; e++)
                    noise[i][e] = __ldg(action_noise + (from + min(at.row(i, e / 2), at.rows - 1)) * A +
                                        min(at.columns * 8 + at.lane % 4 * 2 + e % 2, A - 1));
            multiply<2, Y::PolicyOut, AP / 8>(sums, b + at.row0 * PS, PS, weights + Y::policy_out + at.columns * 32);
            for (int i = 0; i < MT; i++)
                for (int e = 0; e < 4; e++) {
                    const int row = at.row(i, e / 2), action = at.columns * 8 + at.lane % 4 * 2 + e % 2;
                    if (row >= at.rows || action >= A) continue;
                    const float mean = sums[0][i][e] + __ldg(biases + Y::b_out + action);
                    const float raw = sums[1][i][e] + __ldg(biases + Y::b_out + AP + action);
                    float* to = out + (from + row) * 2 * A + action;
                    to[0] = mean, to[A] = raw;
                    const float deviation = softplus(raw + STD_SHIFT) + MIN_STD;
                    put(x + row * XS + Z + action, hyperbolic(5 * hyperbolic(mean / 5) + deviation * noise[i][e]));
                }
        }
        __syncthreads();
        // The belief moves on.
        layer<Y::Inputs>(at, x, XS, weights + Y::inputs, unit(a, biases + Y::b_inputs, N));
        __syncthreads();
        store<N>(inputs + from * N, a, PS, at.rows);
        all_gru(at, a, z, belief, weights, biases, gates + from * D * 4);
        __syncthreads();
        for (int i = threadIdx.x; i < ROWS * D / 2; i += THREADS) {
            const int row = i / (D / 2), column = i % (D / 2) * 2;
            put(z + row * FS + column, belief[row * D + column], belief[row * D + column + 1]);
        }
        __syncthreads();
        // The prior tells the state.
        layer<Y::Hidden>(at, z, FS, weights + Y::hidden, unit(b, biases + Y::b_hidden, N));
        __syncthreads();
        store<N>(hidden + from * N, b, PS, at.rows);
        for (int own = at.columns; own < ZP / 8; own += COLUMNS) {
            float sums[2][MT][4] = {}, noises[MT][4];
            for (int i = 0; i < MT; i++)
                for (int e = 0; e < 4; e++)
                    noises[i][e] = __ldg(state_noise + (from + min(at.row(i, e / 2), at.rows - 1)) * Z +
                                         min(own * 8 + at.lane % 4 * 2 + e % 2, Z - 1));
            multiply<2, Y::Out, ZP / 8>(sums, b + at.row0 * PS, PS, weights + Y::out + own * 32);
            for (int i = 0; i < MT; i++)
                for (int e = 0; e < 4; e++) {
                    const int row = at.row(i, e / 2), state = own * 8 + at.lane % 4 * 2 + e % 2;
                    if (row >= at.rows || state >= Z) continue;
                    const float mean = sums[0][i][e] + __ldg(biases + Y::b_prior + state);
                    const float raw = sums[1][i][e] + __ldg(biases + Y::b_prior + ZP + state);
                    const float noise = noises[i][e];
                    const float sample = mean + (softplus(raw) + 0.1f) * noise;
                    put(z + row * FS + D + state, sample), put(x + row * XS + state, sample);
                    put(spread + (from + row) * Z + state, noise * sigmoid(raw));
                }
        }
        __syncthreads();
        store<F>(features + (from + (at.seed + 1) * n) * F, z, FS, at.rows);
    }
}
