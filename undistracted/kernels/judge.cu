using First = Weight<F, M>;
using Next = Weight<M, M>;
using Back = Weight<M, F>;

// In the order of their use: of reward, then critic, three layers forward and back.
constexpr int WEIGHTS = 2 * (First::size + 4 * Next::size + Back::size);
constexpr int BIASES = 3 * M + 8, LASTS = 2 * M;
using Layer = Rows<larger(TF, TM)>;
constexpr int OWN = up(3 * Layer::size + (2 * BIASES + LASTS) * 4, 128);

// The value of reward (head 0) and critic (head 1), and the gradient of the mean return by the features, of which `by`
// (H, 2) is that by each step's reward and value, for all rows alike. Kept of the critic are the outputs of its hidden
// layers and the value's slopes by their sums.
extern "C" __global__ void __launch_bounds__(THREADS, 1)
    judge(const bf16* features, const uint2* weights, const float* biases, const float* last, const float* by,
          float* reward, float* value, bf16* gradient, bf16* h1, bf16* h2, bf16* h3, bf16* s1, bf16* s2, bf16* s3) {
    Ring<OWN> ring(memory);
    char* const place = (char*)memory;
    float* const bias = (float*)(place + 3 * Layer::size);
    float* const slope = bias + 2 * BIASES;
    copy(bias, biases + blockIdx.y * 2 * BIASES, 2 * BIASES), copy(slope, last + blockIdx.y * LASTS, LASTS);
    __syncthreads();
    if (threadIdx.x >= CREW) {
        weights += blockIdx.y * WEIGHTS;
        if (threadIdx.x > CREW) return;
#pragma unroll 1
        for (int head = 0; head < 2; head++) {
            ring.bring_weight<First>(weights);
#pragma unroll 1
            for (int i = 0; i < 4; i++) ring.bring_weight<Next>(weights);
            ring.bring_weight<Back>(weights);
        }
        return;
    }
    const Place at(H * n);
    const long long from = (long long)at.seed * H * n;
    // Of features, later of the slopes by the last layer's sums; of two layers' outputs, later of the slopes by their sums.
    auto layer = [&](int i) { return Layer(place + i * Layer::size); };
    const Layer x = layer(0);
    features += (from + (at.seed + 1) * n) * F, gradient += from * F, by += at.seed * H * 2;
    h1 += from * M, h2 += from * M, h3 += from * M, s1 += from * M, s2 += from * M, s3 += from * M;
#pragma unroll 1
    for (int head = 0; head < 2; head++) {
        const float *add = bias + head * BIASES, *weight = slope + head * M;
        by_fours<TD>([&](int i, Tiles<4>& y) { at.load<TD>(y, i, features, F), x.put(y, i); });
        by_fours<TZ + 1>([&](int i, Tiles<4>& y) {
            if (i < TZ) at.load<TZ>(y, i, features + D, F);
#pragma unroll
            for (int j = 0; j < 4 && TD + i + j < up(TF, 2); j++) x.put_tile(TD + i + j, y[j][0], y[j][1]);
        });
        {
            Sums<TM> sums;
            clear(sums);
            ring.multiply<First>(x, sums);
            elu(at, sums, add, layer(1), head ? h1 : nullptr);
        }
#pragma unroll 1
        for (int i = 1; i < 3; i++) {
            Sums<TM> sums;
            clear(sums);
            ring.multiply<Next>(layer(i), sums);
            elu(at, sums, add + i * M, layer((i + 1) % 3), head ? i == 1 ? h2 : h3 : nullptr);
        }
        float told[2] = {};
        by_fours<TM>([&](int i, Tiles<4>& y) {
            x.get(y, i);
#pragma unroll
            for (int j = 0; j < 4 && i + j < TM; j++) {
                const float2 w = *(const float2*)(weight + column<TM>(i + j));
#pragma unroll
                for (int half = 0; half < 2; half++) {
                    unsigned& pair = y[j][half];
                    told[half] += w.x * low(pair) + w.y * high(pair);
                    pair = rounded(w.x * elu_slope(low(pair)), w.y * elu_slope(high(pair)));
                }
            }
            x.put(y, i);
            if (head) at.store<TM>(y, i, s3, M);
        });
        for (int half = 0; half < 2; half++) {
            const float all = add[3 * M] + sum_of_four(told[half]);
            if (threadIdx.x % 4 == 0) (head ? value : reward)[from + at.row(half)] = all;
        }
        // From here on a layer's outputs turn, in place, into the slopes by its sums.
#pragma unroll 1
        for (int i = 2; i > 0; i--) {
            Sums<TM> sums;
            clear(sums);
            ring.multiply<Next>(layer((i + 1) % 3), sums);
            const Layer to = layer(i);
            by_fours<TM>([&](int k, Tiles<4>& y) {
                to.get(y, k), blame_sums(y, k, sums), to.put(y, k);
                if (head) at.store<TM>(y, k, i == 1 ? s1 : s2, M);
            });
        }
        Sums<TF> sums;
        clear(sums);
        ring.multiply<Back>(layer(1), sums);
        float share[2];
        for (int half = 0; half < 2; half++) share[half] = __ldg(by + at.row(half) / n * 2 + head);
        // What the reward gave is there when the critic adds to it.
        auto add_to_gradient = [&](Tiles<4>& y, int tile, int count) {
#pragma unroll
            for (int j = 0; j < 4 && j < count; j++)
#pragma unroll
                for (int half = 0; half < 2; half++) {
                    const float(&sum)[4] = sums[tile + j];
                    y[j][half] = rounded(share[half] * sum[2 * half] + low(y[j][half]),
                                         share[half] * sum[2 * half + 1] + high(y[j][half]));
                }
        };
        by_fours<TD>([&](int i, Tiles<4>& y) {
            if (head) at.load<TD, true>(y, i, gradient, F);
            add_to_gradient(y, i, TD - i);
            at.store<TD, true>(y, i, gradient, F);
        });
        by_fours<TZ>([&](int i, Tiles<4>& y) {
            if (head) at.load<TZ, true>(y, i, gradient + D, F);
            add_to_gradient(y, TD + i, TZ - i);
            at.store<TZ, true>(y, i, gradient + D, F);
        });
    }
}
