struct Reverse {
    using Out = Weight<2 * ZP, N>;
    using Hidden = Weight<N, D>;
    using GateX = Weight<D, N>;
    using GateH = Weight<D, D>;
    using Inputs = Weight<N, ZP + AP>;
    static constexpr int hidden = Out::size, gates_x = hidden + Hidden::size, gates_h = gates_x + 3 * GateX::size,
                         inputs = gates_h + 3 * GateH::size, size = inputs + Inputs::size;
};

constexpr int GS = DS > NS ? DS : NS, OS = apart(2 * ZP);
constexpr int PULL_MEMORY = ROWS * (D * 4 + ZP * 4 + (3 * GS + OS) * 2);

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    pull_back(const bf16* gradient, const bf16* features, const bf16* inputs, const bf16* gates, const bf16* hidden,
              const bf16* spread, const uint2* weights, float* pull) {
    using Y = Reverse;
    constexpr int TILES = Y::Hidden::tiles / COLUMNS, TILES_IN = Y::GateX::tiles / COLUMNS;
    const Place at(n);
    float *by_belief = (float*)memory, *by_state = by_belief + ROWS * D;  // of the latent that the last step left
    bf16 *r = (bf16*)(by_state + ROWS * ZP), *u = r + ROWS * GS, *a = u + ROWS * GS, *out = a + ROWS * GS;
    clear(PULL_MEMORY);
    weights += at.seed * Y::size;
    for (int t = H - 1; t >= 0; t--) {
        const long long from = ((long long)at.seed * H + t) * n + at.first;
        // Back through the state's sample and the prior.
        for (int i = threadIdx.x; i < at.rows * Z; i += THREADS) {
            const int row = i / Z, state = i % Z;
            const float g = by_state[row * ZP + state] + one(__ldg(gradient + (from + row) * F + D + state));
            put(out + row * OS + state, g), put(out + row * OS + ZP + state, g * one(__ldg(spread + from * Z + i)));
        }
        __syncthreads();
        auto kept_hidden = [&](int row, int column) { return at.pair(hidden + from * N, N, row, column); };
        layer<Y::Out>(at, out, OS, weights, kept_hidden, [&](int row, int column, float x, float y, unsigned pair) {
            if (column >= N) return;
            put(a + row * GS + column, x * elu_slope(low(pair)), y * elu_slope(high(pair)));
        });
        __syncthreads();
        // Back through the gates. A thread has the same columns of the belief in every product below.
        unsigned by_new[TILES][MT][2];
        {
            float sums[TILES][MT][4] = {};
            multiply<TILES, Y::Hidden, COLUMNS>(sums, a + at.row0 * GS, GS, weights + Y::hidden + at.columns * 32);
            at.each<TILES>([&](int j, int i, int half, int row, int column) {
                const uint4 kept =
                    __ldg((const uint4*)(gates + ((from + min(row, at.rows - 1)) * D + min(column, D - 2)) * 4));
                const unsigned ru[2] = {kept.x, kept.z}, nh[2] = {kept.y, kept.w};
                const unsigned g = at.pair(gradient + from * F, F, row, column);
                const unsigned before = at.pair(features + (from + at.seed * n) * F, F, row, column);
                const int own = row * D + min(column, D - 2);
                float by[3][2];  // the candidate's sum, the update's, the reset's
#pragma unroll
                for (int k = 0; k < 2; k++) {
                    float& carried = by_belief[own + k];
                    const float whole = carried + sums[j][i][2 * half + k] + (k ? high(g) : low(g));
                    const float reset = low(ru[k]), update = high(ru[k]), candidate = low(nh[k]);
                    if (column < D) carried = whole * update;
                    by[0][k] = whole * (1 - update) * (1 - candidate * candidate);
                    by[1][k] = whole * ((k ? high(before) : low(before)) - candidate) * update * (1 - update);
                    by[2][k] = by[0][k] * high(nh[k]) * reset * (1 - reset);
                }
                by_new[j][i][half] = rounded(by[0][0], by[0][1]);
                if (column >= D) return;
                put(u + row * GS + column, by[1][0], by[1][1]);
                put(r + row * GS + column, by[2][0], by[2][1]);
            });
        }
        __syncthreads();
        auto each_new = [&](auto f) {
            at.each<TILES>([&](int j, int i, int half, int row, int column) {
                if (column < D) f(row, column, by_new[j][i][half]);
            });
        };
        each_new([&](int row, int column, unsigned pair) { *(unsigned*)(a + row * GS + column) = pair; });
        __syncthreads();
        unsigned by_inputs[TILES_IN][MT][2];
        {
            float sums[TILES_IN][MT][4] = {};
#pragma unroll 1
            for (int k = 0; k < 3; k++)
                multiply<TILES_IN, Y::GateX, COLUMNS>(sums, r + (k * ROWS + at.row0) * GS, GS,
                                                      weights + Y::gates_x + k * Y::GateX::size + at.columns * 32);
            at.each<TILES_IN>([&](int j, int i, int half, int row, int column) {
                const unsigned pair = at.pair(inputs + from * N, N, row, column);
                by_inputs[j][i][half] = rounded(sums[j][i][2 * half] * elu_slope(low(pair)),
                                                sums[j][i][2 * half + 1] * elu_slope(high(pair)));
            });
        }
        __syncthreads();
        each_new([&](int row, int column, unsigned pair) {  // the candidate's part of the old belief
            const bf16* reset = gates + ((from + min(row, at.rows - 1)) * D + column) * 4;
            put(a + row * GS + column, low(pair) * one(__ldg(reset)), high(pair) * one(__ldg(reset + 4)));
        });
        __syncthreads();
        {
            float sums[TILES][MT][4] = {};
#pragma unroll 1
            for (int k = 0; k < 3; k++)
                multiply<TILES, Y::GateH, COLUMNS>(sums, r + (k * ROWS + at.row0) * GS, GS,
                                                   weights + Y::gates_h + k * Y::GateH::size + at.columns * 32);
            at.each<TILES>([&](int j, int i, int half, int row, int column) {
                if (column >= D) return;
                by_belief[row * D + column] += sums[j][i][2 * half];
                by_belief[row * D + column + 1] += sums[j][i][2 * half + 1];
            });
        }
        __syncthreads();
        // Back to the state and the action before.
        at.each<TILES_IN>([&](int j, int i, int half, int row, int column) {
            if (column < N) *(unsigned*)(a + row * GS + column) = by_inputs[j][i][half];
        });
        __syncthreads();
        layer<Y::Inputs>(at, a, GS, weights + Y::inputs, [&](int row, int column, float x, float y) {
            const float pair[2] = {x, y};
            for (int k = 0; k < 2; k++)
                if (column + k < ZP)
                    by_state[row * ZP + column + k] = pair[k];
                else if (row < at.rows && column + k - ZP < A)
                    pull[(from + row) * A + column + k - ZP] = pair[k];
        });
        __syncthreads();
    }
}
