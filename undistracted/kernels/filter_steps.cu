struct Forward {
    using Inputs = Weight<Z, N>;
    using Out = Weight<N, 2 * ZP>;
    using GatesH = Weight<D, 3 * 8 * TD>;  // a tile of each gate next to each other
    using GatesX = Weight<N, 3 * 8 * TD>;
    using Hidden = Weight<D, 8 * TN>;
    static constexpr int out = Inputs::size, common = out + Out::size;
    static constexpr int gates_x = GatesH::size, hidden = gates_x + GatesX::size, own = hidden + Hidden::size;
    static constexpr int size = common + CLUSTER * own;
    static constexpr int b_gates = N, b_hidden = b_gates + 4 * D, b_out = b_hidden + N, biases = b_out + 2 * ZP;
    static constexpr int rows = TILE * (2 * NS + 2 * DS + XS) * 2;  // bytes
};

// `by_action` and `by_encoding` are products known before; `keep` tells of belief and state what a step keeps of the
// last. Kept for the gradient are the layers' outputs and of the gates reset, update, candidate and its part of the old
// belief.
extern "C" __global__ void __cluster_dims__(CLUSTER, 1, 1) __launch_bounds__(CREW, 1)
    filter_steps(const bf16* by_action, const bf16* by_encoding, const float* noise, const float* keep,
                 const uint2* weights, const float* biases, float* belief, float* state, float* mean, float* deviation,
                 bf16* inputs, bf16* gates, bf16* hidden) {
    using Y = Forward;
    const Crew my;
    bf16 *a = (bf16*)memory, *b = a + TILE * NS, *h = b + TILE * NS, *x = h + 2 * TILE * DS;
    weights += my.seed * Y::size, biases += my.seed * Y::biases;
    const uint2 *own = weights + Y::common + my.rank * Y::own,
                *near = prepare(Y::rows, weights, Y::common, own, Y::gates_x);
    const int warp_d = min(my.warp, TD - 1) * 32, warp_n = min(my.warp, TN - 1) * 32,
              warp_z = min(my.warp, TZ - 1) * 32;
    const Held<3, Y::GatesX, 1> gates_x(own + Y::gates_x + warp_d * 3);
    const Held<1, Y::Hidden, 1> to_hidden(own + Y::hidden + warp_n);
    const Near<3, Y::GatesH, 1> gates_h(near + Y::common + warp_d * 3);
    const Near<2, Y::Out, TZ> to_out(near + Y::out + warp_z);
    float bias_gates[4][2], bias_hidden[2], bias_out[2][2], bias_inputs[MANY][2];
    int column_inputs[MANY];
#pragma unroll
    for (int k = 0; k < 2; k++) {
#pragma unroll
        for (int gate = 0; gate < 4; gate++)
            bias_gates[gate][k] = __ldg(biases + Y::b_gates + gate * D + my.column_d + k);
        bias_hidden[k] = __ldg(biases + Y::b_hidden + my.column_n + k);
#pragma unroll
        for (int part = 0; part < 2; part++) bias_out[part][k] = __ldg(biases + Y::b_out + part * ZP + my.column_z + k);
#pragma unroll
        for (int j = 0; j < MANY; j++) {
            column_inputs[j] = min(my.warp + j * WARPS, ALL_N - 1) * 8 + my.q;
            bias_inputs[j][k] = __ldg(biases + column_inputs[j] + k);
        }
    }
    float2 kept[2] = {};                       // whether this step keeps belief and state
    float old_belief[4] = {}, old[3][4] = {};  // the old belief and its part of the gates
    unsigned add_inputs[MANY][2], add_hidden[2];
    auto ask_ahead = [&](int t) {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            add_hidden[half] = ask_pair(by_encoding + my.at(t, half) * N + my.column_n);
#pragma unroll
            for (int j = 0; j < MANY; j++)
                add_inputs[j][half] = ask_pair(by_action + my.at(t, half) * N + column_inputs[j]);
        }
    };
    ask_ahead(0);
#pragma unroll 1
    for (int t = 0; t < T; t++) {
        const int next = min(t + 1, T - 1);
        float2 draw[2], kept_next[2];
#pragma unroll
        for (int half = 0; half < 2; half++) {
            draw[half] = ask_two(noise + my.at(t, half) * Z + my.column_z);
            kept_next[half] = ask_two(keep + my.at(next, half) * 2);
        }
        // The GRU's inputs, all of them.
#pragma unroll
        for (int j = 0; j < MANY; j++) {
            const int tile = my.warp + j * WARPS;
            if (tile >= ALL_N) continue;
            float sums[1][4] = {};
            multiply(sums, x, XS, Near<1, Y::Inputs, 1>(near + tile * 32));
#pragma unroll
            for (int half = 0; half < 2; half++) {
                const unsigned pair =
                    rounded(elu(sums[0][2 * half] + bias_inputs[j][0] + low(add_inputs[j][half])),
                            elu(sums[0][2 * half + 1] + bias_inputs[j][1] + high(add_inputs[j][half])));
                store_pair(a + (my.row + half * 8) * NS + column_inputs[j], pair);
                if (tile / TN == my.rank && my.live(half))
                    store_pair(inputs + my.at(t, half) * N + column_inputs[j], pair);
            }
        }
        __syncthreads();
        // A share of the new belief.
        bf16* now = h + t % 2 * TILE * DS;  // others may still read the last one
        unsigned keeps[2][4];
        if (my.has_d) {
            float sums[3][4] = {};
            multiply(sums, a, NS, gates_x);
            unsigned pairs[2];
#pragma unroll
            for (int half = 0; half < 2; half++) {
#pragma unroll
                for (int k = 0; k < 2; k++) {
                    const int e = 2 * half + k;
                    const float r = sigmoid(sums[0][e] + kept[half].x * old[0][e] + bias_gates[0][k]);
                    const float u = sigmoid(sums[1][e] + kept[half].x * old[1][e] + bias_gates[1][k]);
                    const float part = kept[half].x * old[2][e] + bias_gates[3][k];
                    const float candidate = hyperbolic(sums[2][e] + bias_gates[2][k] + r * part);
                    old_belief[e] = (1 - u) * candidate + u * kept[half].x * old_belief[e];
                    keeps[half][2 * k] = rounded(r, u), keeps[half][2 * k + 1] = rounded(candidate, part);
                }
                pairs[half] = rounded(old_belief[2 * half], old_belief[2 * half + 1]);
            }
            my.share(now, DS, my.column_d, pairs);
        }
        arrive();
#pragma unroll
        for (int half = 0; half < 2; half++) {
            if (!my.has_d || !my.live(half)) continue;
            const int place = my.at(t, half) * D + my.column_d;
            store_two(belief + place, old_belief[2 * half], old_belief[2 * half + 1]);
            *(uint4*)(gates + place * 4) = uint4{keeps[half][0], keeps[half][1], keeps[half][2], keeps[half][3]};
        }
        wait();
        // A share of the posterior's layer, and what the next step will need of this belief.
        unsigned pairs[2];
        if (my.has_n) {
            float sums[1][4] = {};
            multiply(sums, now, DS, to_hidden);
#pragma unroll
            for (int half = 0; half < 2; half++) {
                pairs[half] = rounded(elu(sums[0][2 * half] + bias_hidden[0] + low(add_hidden[half])),
                                      elu(sums[0][2 * half + 1] + bias_hidden[1] + high(add_hidden[half])));
            }
            my.share(b, NS, my.column_n, pairs);
        }
        arrive();
        ask_ahead(next);
#pragma unroll
        for (int half = 0; half < 2; half++)
            if (my.has_n && my.live(half)) store_pair(hidden + my.at(t, half) * N + my.column_n, pairs[half]);
        if (my.has_d) {
#pragma unroll
            for (int i = 0; i < 12; i++) old[i / 4][i % 4] = 0;
            multiply(old, now, DS, gates_h);
        }
        wait();
        // The posterior and its sample, all of them.
        if (my.has_z) {
            float sums[2][4] = {};
            multiply(sums, b, NS, to_out);
#pragma unroll
            for (int half = 0; half < 2; half++) {
                float m[2], s[2], sample[2];
#pragma unroll
                for (int k = 0; k < 2; k++) {
                    m[k] = sums[0][2 * half + k] + bias_out[0][k];
                    s[k] = softplus(sums[1][2 * half + k] + bias_out[1][k]) + 0.1f;
                    sample[k] = m[k] + s[k] * (k ? draw[half].y : draw[half].x);
                }
                if (!my.z) continue;
                put(x + (my.row + half * 8) * XS + my.column_z, sample[0] * kept_next[half].y,
                    sample[1] * kept_next[half].y);
                if (my.warp % CLUSTER != my.rank || !my.live(half)) continue;
                const int place = my.at(t, half) * Z + my.column_z;
                store_two(mean + place, m[0], m[1]), store_two(deviation + place, s[0], s[1]);
                store_two(state + place, sample[0], sample[1]);
            }
        }
        kept[0] = kept_next[0], kept[1] = kept_next[1];
        __syncthreads();
    }
}
