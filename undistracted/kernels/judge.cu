struct Head {
    using First = Weight<F, M>;
    using Next = Weight<M, M>;
    using Last = Weight<M, 1, 1>;
    using Back = Weight<M, F>;
    static constexpr int second = First::size, third = second + Next::size, last = third + Next::size,
                         third_back = last + Last::size, second_back = third_back + Next::size,
                         first_back = second_back + Next::size, size = first_back + Back::size, biases = 3 * M + 8;
};

constexpr int JUDGE_MEMORY = ROWS * (FS + (FS > MS ? FS : MS) + 2 * MS) * 2;

// The value of reward (head 0) and critic (head 1), and the gradient of the mean return by the features, of which `by`
// (H, 2) is that by each step's reward and value, for all rows alike. Kept of the critic are the outputs of its hidden
// layers and the value's slopes by their sums.
extern "C" __global__ void __launch_bounds__(THREADS, 1)
    judge(const bf16* features, const uint2* weights, const float* biases, const bf16* last, const float* by,
          float* reward, float* value, bf16* gradient, bf16* h1, bf16* h2, bf16* h3, bf16* s1, bf16* s2, bf16* s3) {
    const Place at(H * n);
    const long long from = (long long)at.seed * H * n + at.first;
    bf16 *g = (bf16*)memory, *a = g + ROWS * FS, *c = a + ROWS * MS, *b = c + ROWS * MS, *x = b;  // which b replaces
    clear(JUDGE_MEMORY);
    by += at.seed * H * 2;
    auto keep = [&](bf16* first, bf16* second, bf16* third) {
        store<M>(first + from * M, a, MS, at.rows);
        store<M>(second + from * M, b, MS, at.rows);
        store<M>(third + from * M, c, MS, at.rows);
    };
#pragma unroll 1
    for (int head = 0; head < 2; head++) {
        load<F>(x, features + (from + (at.seed + 1) * n) * F, FS, at.rows);
        __syncthreads();
        const uint2* weight = weights + (at.seed * 2 + head) * Head::size;
        const float* bias = biases + (at.seed * 2 + head) * Head::biases;
        const bf16* slope = last + (at.seed * 2 + head) * M;
        auto forward = [&](bf16* to, int of) {
            return [=](int row, int column, float u, float v) {
                if (column >= M) return;
                const float* add = bias + of * M + column;
                put(to + row * MS + column, elu(u + __ldg(add)), elu(v + __ldg(add + 1)));
            };
        };
        layer<Head::First>(at, x, FS, weight, forward(a, 0));
        __syncthreads();
#pragma unroll 1
        for (int i = 0; i < 2; i++) {
            layer<Head::Next>(at, i ? b : a, MS, weight + Head::second + i * Head::Next::size,
                              forward(i ? c : b, i + 1));
            __syncthreads();
        }
        if (at.columns == 0) {
            float sums[1][MT][4] = {};
            multiply<1, Head::Last, 1>(sums, c + at.row0 * MS, MS, weight + Head::last);
            at.each<1>([&](int j, int i, int half, int row, int column) {
                if (column == 0 && row < at.rows)
                    (head ? value : reward)[from + row] = sums[j][i][2 * half] + __ldg(bias + 3 * M);
            });
        }
        if (head) keep(h1, h2, h3);
        __syncthreads();
        // From here on a layer's outputs turn, in place, into the slopes by its sums.
        for (int i = threadIdx.x; i < ROWS * M / 2; i += THREADS) {
            const int column = i % (M / 2) * 2;
            unsigned& pair = *(unsigned*)(c + i / (M / 2) * MS + column);
            pair = rounded(one(__ldg(slope + column)) * elu_slope(low(pair)),
                           one(__ldg(slope + column + 1)) * elu_slope(high(pair)));
        }
        __syncthreads();
#pragma unroll 1
        for (int i = 0; i < 2; i++) {
            bf16 *source = i ? b : c, *to = i ? a : b;
            layer<Head::Next>(at, source, MS, weight + Head::third_back + i * Head::Next::size,
                              [&](int row, int column, float u, float v) {
                                  if (column >= M) return;
                                  unsigned& pair = *(unsigned*)(to + row * MS + column);
                                  pair = rounded(u * elu_slope(low(pair)), v * elu_slope(high(pair)));
                              });
            __syncthreads();
        }
        if (head) keep(s1, s2, s3);
        float share[MT][2];
        for (int i = 0; i < MT; i++)
            for (int half = 0; half < 2; half++)
                share[i][half] = __ldg(by + min(at.first + at.row(i, half), H * n - 1) / n * 2 + head);
        layer<Head::Back>(at, a, MS, weight + Head::first_back, [&](int row, int column, float u, float v) {
            if (column >= F) return;
            unsigned& pair = *(unsigned*)(g + row * FS + column);
            const float by = share[(row - at.row0) / 16][row / 8 % 2];
            pair = rounded(by * u + low(pair), by * v + high(pair));  // zero at first
        });
        __syncthreads();
    }
    store<F>(gradient + from * F, g, FS, at.rows);
}
