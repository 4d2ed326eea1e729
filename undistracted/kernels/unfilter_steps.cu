struct Backward {
    using Out = Weight<2 * ZP, N>;
    using Inputs = Weight<N, ZP>;
    using GateH = Weight<D, 8 * TD>;  // of each: reset, update, candidate
    using GateX = Weight<D, 8 * TN>;  // of each: candidate, reset, update
    using Hidden = Weight<N, 8 * TD>;
    static constexpr int inputs = Out::size, common = inputs + Inputs::size;
    static constexpr int gates_x = 3 * GateH::size, hidden = gates_x + 3 * GateX::size, own = hidden + Hidden::size;
    static constexpr int size = common + CLUSTER * own;
    static constexpr int rows = TILE * (8 * DS + NS + OS) * 2;  // bytes
};

// From gradients by what `filter_steps` put out to those by the sums of its products. Of the gates, `by_x` is that by
// the inputs' parts (reset, update, candidate), `by_h` that by the old belief's.
extern "C" __global__ void __cluster_dims__(CLUSTER, 1, 1) __launch_bounds__(CREW, 1)
    unfilter_steps(const float* of_belief, const float* of_state, const float* of_mean, const float* of_deviation,
                   const float* noise, const float* keep, const float* belief, const float* deviation,
                   const bf16* inputs, const bf16* gates, const bf16* hidden, const uint2* weights, bf16* by_inputs,
                   bf16* by_x, bf16* by_h, bf16* by_hidden, bf16* by_out) {
    using Y = Backward;
    constexpr int GATE = TILE * DS;
    const Crew my;
    bf16 *g = (bf16*)memory, *a = g + 8 * GATE,
         *out = a + TILE * NS;  // a: by the posterior's layer, then by the inputs
    weights += my.seed * Y::size;
    const uint2 *own = weights + Y::common + my.rank * Y::own,
                *near = prepare(Y::rows, weights, Y::common, own, Y::gates_x);
    const int warp_d = min(my.warp, TD - 1) * 32, warp_n = min(my.warp, TN - 1) * 32,
              warp_z = min(my.warp, TZ - 1) * 32;
    const Held<3, Y::GateX, 0, Y::GateX::size> gates_x(own + Y::gates_x + warp_n);
    const Held<1, Y::Hidden, 1> from_hidden(own + Y::hidden + warp_d);
    const Near<3, Y::GateH, 0, Y::GateH::size> gates_h(near + Y::common + warp_d);
    const Near<1, Y::Inputs, 1> from_inputs(near + Y::inputs + warp_z);
    float by_belief[4] = {}, by_state[4] = {};  // by what the last step left
    // What a step needs, asked for in the step before.
    float2 new_belief[2], before[2], kept[2], new_state[2], new_mean[2], new_deviation[2], draw[2], spread[2];
    uint4 gate[2];
    unsigned was_hidden[MANY][2], was_inputs[2];
    int column_hidden[MANY];
#pragma unroll
    for (int j = 0; j < MANY; j++) column_hidden[j] = min(my.warp + j * WARPS, ALL_N - 1) * 8 + my.q;
    auto ask_ahead = [&](int t) {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int at = my.at(t, half), at_d = at * D + my.column_d, at_z = at * Z + my.column_z;
            new_state[half] = ask_two(of_state + at_z), new_mean[half] = ask_two(of_mean + at_z);
            new_deviation[half] = ask_two(of_deviation + at_z);
            draw[half] = ask_two(noise + at_z), spread[half] = ask_two(deviation + at_z);
#pragma unroll
            for (int j = 0; j < MANY; j++) was_hidden[j][half] = ask_pair(hidden + at * N + column_hidden[j]);
            new_belief[half] = ask_two(of_belief + at_d), gate[half] = ask((const uint4*)(gates + at_d * 4));
            before[half] = ask_two(belief + my.at(max(t - 1, 0), half) * D + my.column_d);
            was_inputs[half] = ask_pair(inputs + at * N + my.column_n);
        }
    };
    ask_ahead(T - 1);
#pragma unroll 1
    for (int t = T - 1; t >= 0; t--) {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            kept[half] = ask_two(keep + my.at(t, half) * 2);
            if (t == 0) kept[half] = float2{0, 0};
        }
        // Back through the sample, to all of the posterior.
        if (my.z) {
#pragma unroll
            for (int half = 0; half < 2; half++) {
                const float x = by_state[2 * half] + new_state[half].x, y = by_state[2 * half + 1] + new_state[half].y;
                // 1 - exp(-softplus) is softplus's slope.
                const unsigned by_mean = rounded(new_mean[half].x + x, new_mean[half].y + y);
                const unsigned by_raw =
                    rounded((new_deviation[half].x + x * draw[half].x) * (1 - __expf(0.1f - spread[half].x)),
                            (new_deviation[half].y + y * draw[half].y) * (1 - __expf(0.1f - spread[half].y)));
                bf16* to = out + (my.row + half * 8) * OS + my.column_z;
                store_pair(to, by_mean), store_pair(to + ZP, by_raw);
                if (my.warp % CLUSTER != my.rank || !my.live(half)) continue;
                to = by_out + my.at(t, half) * 2 * Z + my.column_z;
                store_pair(to, by_mean), store_pair(to + Z, by_raw);
            }
        }
        __syncthreads();
        // All of the posterior's layer.
#pragma unroll
        for (int j = 0; j < MANY; j++) {
            const int tile = my.warp + j * WARPS;
            if (tile >= ALL_N) continue;
            float sums[1][4] = {};
            multiply(sums, out, OS, Near<1, Y::Out, 1>(near + tile * 32));
#pragma unroll
            for (int half = 0; half < 2; half++) {
                const unsigned was = was_hidden[j][half];
                const unsigned pair =
                    rounded(sums[0][2 * half] * elu_slope(low(was)), sums[0][2 * half + 1] * elu_slope(high(was)));
                store_pair(a + (my.row + half * 8) * NS + column_hidden[j], pair);
                if (tile / TN == my.rank && my.live(half))
                    store_pair(by_hidden + my.at(t, half) * N + column_hidden[j], pair);
            }
        }
        __syncthreads();
        // A share of the belief, and through the gates. In this order: candidate, reset, update, candidate's old part.
        bf16* now = g + t % 2 * 4 * GATE;  // others may still read the last ones
        unsigned of_gates[4][2];
        if (my.has_d) {
            float sums[1][4] = {};
            multiply(sums, a, NS, from_hidden);
#pragma unroll
            for (int half = 0; half < 2; half++) {
                float by[4][2];
#pragma unroll
                for (int k = 0; k < 2; k++) {
                    const float whole =
                        by_belief[2 * half + k] + sums[0][2 * half + k] + (k ? new_belief[half].y : new_belief[half].x);
                    const unsigned ru = k ? gate[half].z : gate[half].x, np = k ? gate[half].w : gate[half].y;
                    const float r = low(ru), u = high(ru), candidate = low(np);
                    const float last = kept[half].x * (k ? before[half].y : before[half].x);
                    by_belief[2 * half + k] = whole * u;
                    by[0][k] = whole * (1 - u) * (1 - candidate * candidate);
                    by[1][k] = by[0][k] * high(np) * r * (1 - r);
                    by[2][k] = whole * (last - candidate) * u * (1 - u);
                    by[3][k] = by[0][k] * r;
                }
#pragma unroll
                for (int i = 0; i < 4; i++) of_gates[i][half] = rounded(by[i][0], by[i][1]);
            }
#pragma unroll
            for (int i = 0; i < 4; i++) my.share(now + i * GATE, DS, my.column_d, of_gates[i]);
        }
        arrive();
#pragma unroll
        for (int half = 0; half < 2; half++) {
            if (!my.has_d || !my.live(half)) continue;
            const int place = my.at(t, half) * 3 * D + my.column_d;
#pragma unroll
            for (int i = 0; i < 3; i++) {
                store_pair(by_x + place + i * D, of_gates[i == 2 ? 0 : i + 1][half]);
                store_pair(by_h + place + i * D, of_gates[i + 1][half]);
            }
        }
        wait();
        // A share of the inputs; meanwhile, of the old belief.
        unsigned pairs[2];
        if (my.has_n) {
            float sums[3][4] = {};
            multiply<GATE>(sums, now, DS, gates_x);
#pragma unroll
            for (int half = 0; half < 2; half++) {
                float by[2];
#pragma unroll
                for (int k = 0; k < 2; k++)
                    by[k] = sums[0][2 * half + k] + sums[1][2 * half + k] + sums[2][2 * half + k];
                pairs[half] =
                    rounded(by[0] * elu_slope(low(was_inputs[half])), by[1] * elu_slope(high(was_inputs[half])));
            }
            my.share(a, NS, my.column_n, pairs);
        }
        arrive();
        ask_ahead(max(t - 1, 0));
#pragma unroll
        for (int half = 0; half < 2; half++)
            if (my.has_n && my.live(half)) store_pair(by_inputs + my.at(t, half) * N + my.column_n, pairs[half]);
        if (my.has_d) {
            float sums[3][4] = {};
            multiply<GATE>(sums, now + GATE, DS, gates_h);
#pragma unroll
            for (int e = 0; e < 4; e++)
                by_belief[e] = kept[e / 2].x * (by_belief[e] + sums[0][e] + sums[1][e] + sums[2][e]);
        }
        wait();
        // All of the state before.
        if (my.has_z) {
            float sums[1][4] = {};
            multiply(sums, a, NS, from_inputs);
#pragma unroll
            for (int e = 0; e < 4; e++) by_state[e] = kept[e / 2].y * sums[0][e];
        }
    }
}
