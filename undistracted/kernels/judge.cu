using First = Weight<F, M>;
using Next = Weight<M, M>;
using Back = Weight<M, F>;

// In the order of their use: of reward, then critic, three layers forward and the last two back; then the first layers
// back, the critic's before the reward's.
constexpr int WEIGHTS = 2 * (First::size + 4 * Next::size + Back::size);
constexpr int BIASES = 3 * M + 8, LASTS = 2 * M, OWN = up(3 * Stash<TM>::size + (2 * BIASES + LASTS) * 4, 128);

// The value of reward (head 0) and critic (head 1), and the gradient of the mean return by the features, of which `by`
// (H, 2) is that by each step's reward and value, for all rows alike. Kept of the critic are the outputs of its hidden
// layers and the value's slopes by their sums.
extern "C" __global__ void __launch_bounds__(THREADS, 1)
    judge(const bf16* features, const uint2* weights, const float* biases, const float* last, const float* by,
          float* reward, float* value, bf16* gradient, bf16* h1, bf16* h2, bf16* h3, bf16* s1, bf16* s2, bf16* s3) {
    Ring<OWN> ring(memory);
    float* const bias = (float*)((char*)memory + 3 * Stash<TM>::size);
    float* const slope = bias + 2 * BIASES;
    copy(bias, biases + blockIdx.y * 2 * BIASES, 2 * BIASES), copy(slope, last + blockIdx.y * LASTS, LASTS);
    __syncthreads();
    if (threadIdx.x >= CREW) {
        weights += blockIdx.y * WEIGHTS;
        if (threadIdx.x > CREW) return;
        for (int head = 0; head < 2; head++) {
            ring.bring_weight<First>(weights);
            for (int i = 0; i < 4; i++) ring.bring_weight<Next>(weights);
        }
        ring.bring_weight<Back>(weights), ring.bring_weight<Back>(weights);
        return;
    }
    const Place at(H * n);
    const long long from = (long long)at.seed * H * n;
    Stash<TM> first(memory), second((char*)memory + Stash<TM>::size), reward_slopes((char*)memory + 2 * Stash<TM>::size);
    by += at.seed * H * 2;
    float share[2][2];  // of each row, by reward and value
    for (int half = 0; half < 2; half++)
        for (int head = 0; head < 2; head++) share[half][head] = __ldg(by + at.row(half) / n * 2 + head);
    Tiles<TM> y;
    // What a row's gradient by its reward or value is, times the slopes that y holds.
    auto scale = [&](int head) {
        each<TM>([&](int j, int half, int) {
            y[j][half] = rounded(share[half][head] * low(y[j][half]), share[half][head] * high(y[j][half]));
        });
    };
#pragma unroll 1
    for (int head = 0; head < 2; head++) {
        const float *add = bias + head * BIASES, *weight = slope + head * M;
        auto keep = [&](bf16* to) {
            if (head) at.store<TM>(y, to + from * M, M);
        };
        {
            Tiles<TF> x;
            at.load<TD>(x, features + (from + (at.seed + 1) * n) * F, F);
            at.load<TZ, TD>(x, features + (from + (at.seed + 1) * n) * F + D, F);
            Sums<TM> sums;
            begin(sums, add);
            ring.multiply<First>(x, sums);
            elu(y, sums);
        }
        keep(h1), first.put(y);
#pragma unroll 1
        for (int i = 1; i < 3; i++) {
            Sums<TM> sums;
            begin(sums, add + i * M);
            ring.multiply<Next>(y, sums);
            elu(y, sums);
            keep(i == 1 ? h2 : h3);
            if (i == 1) second.put(y);
        }
        float sums[2] = {};
        each<TM>([&](int j, int half, int) {
            const float2 w = *(const float2*)(weight + column<TM>(j));
            sums[half] += w.x * low(y[j][half]) + w.y * high(y[j][half]);
            y[j][half] = rounded(w.x * elu_slope(low(y[j][half])), w.y * elu_slope(high(y[j][half])));
        });
        keep(s3);
        for (int half = 0; half < 2; half++) {
            const float all = add[3 * M] + sum_of_four(sums[half]);
            if (threadIdx.x % 4 == 0 && at.has(half)) (head ? value : reward)[from + at.row(half)] = all;
        }
#pragma unroll 1
        for (int i = 1; i >= 0; i--) {
            Sums<TM> sums;
            clear(sums);
            ring.multiply<Next>(y, sums);
            (i ? second : first).get(y);
            blame_sums(y, sums);
            keep(i ? s2 : s1);
        }
        scale(head);
        if (head == 0) reward_slopes.put(y);
    }
    Sums<TF> sums;
    clear(sums);
    ring.multiply<Back>(y, sums);
    reward_slopes.get(y);
    ring.multiply<Back>(y, sums);
    Tiles<TF> x;
    each<TF>([&](int j, int half, int e) { x[j][half] = rounded(sums[j][e], sums[j][e + 1]); });
    at.store<TD>(x, gradient + from * F, F), at.store<TZ, TD>(x, gradient + from * F + D, F);
}
