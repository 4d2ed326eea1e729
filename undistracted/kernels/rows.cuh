// Layers on tiles of rows. A block takes ROWS rows through one layer after another: what a layer puts out stays in
// shared memory, and weights come straight from the cache into registers, packed in the order in which the tensor cores
// take them (`pack` in kernels/weights.py). The block's warps are 2 groups of rows by 5 groups of columns.
//
// Compiled for one set of sizes: F features (belief D and state Z), A actions, N units of the world model's layers, M
// of the heads', H steps, MT tiles of 16 rows to a warp.

using bf16 = unsigned short;

constexpr int COLUMNS = 5, THREADS = 2 * COLUMNS * 32, ROWS = 2 * 16 * MT, F = D + Z;

__host__ __device__ constexpr int up(int x, int m) { return (x + m - 1) / m * m; }

// Rows of shared memory lie an odd number of 16 bytes apart, so that eight of them meet in no bank.
__host__ __device__ constexpr int apart(int x) { return up(x, 16) + 8; }

// A weight of K inputs and N outputs: slabs of 16 inputs, each of tiles of 8 outputs, as many for each group of
// columns.
template <int K, int N, int GROUPS = COLUMNS>
struct Weight {
    static constexpr int slabs = up(K, 16) / 16, tiles = up(N, 8 * GROUPS) / 8, size = slabs * tiles * 32;
};

__device__ inline float low(unsigned pair) { return __uint_as_float(pair << 16); }
__device__ inline float high(unsigned pair) { return __uint_as_float(pair & 0xffff0000u); }
__device__ inline float one(bf16 x) { return __uint_as_float((unsigned)x << 16); }
__device__ inline float sigmoid(float x) { return __fdividef(1, 1 + __expf(-x)); }
__device__ inline float hyperbolic(float x) { return 1 - __fdividef(2, 1 + __expf(2 * x)); }
__device__ inline float softplus(float x) { return fmaxf(x, 0.f) + __logf(1 + __expf(-fabsf(x))); }
__device__ inline float elu(float x) { return x > 0 ? x : __expf(x) - 1; }
__device__ inline float elu_slope(float y) { return fminf(y, 0.f) + 1; }

#ifndef ON_CPU  // tests emulate these on a CPU
__device__ inline unsigned rounded(float x, float y) {
    unsigned pair;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(y), "f"(x));
    return pair;
}

__device__ inline uint2 ask(const uint2* weight) {  // volatile: where it stands, not as early as can be
    uint2 w;
    asm volatile("ld.global.nc.v2.u32 {%0,%1}, [%2];" : "=r"(w.x), "=r"(w.y) : "l"(weight));
    return w;
}

__device__ inline void load_tile(unsigned (&x)[4], unsigned address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
                 : "r"(address));
}

__device__ inline void multiply_tile(float (&sum)[4], const unsigned (&x)[4], uint2 w) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
        : "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3]), "r"(w.x), "r"(w.y));
}

// sums += rows x weight, for COUNT tiles of columns: from that on which `weight` points, GROUP next to each other, then
// STEP further. `x` is the first row of this warp, `stride` apart from the next. Weights are asked for a few slabs
// before they are needed: fewer rows leave less to do meanwhile.
template <int COUNT, class W, int STEP, int GROUP = 1>
__device__ void multiply(float (&sums)[COUNT][MT][4], const bf16* x, int stride, const uint2* weight) {
    constexpr int AHEAD = COUNT > 6 ? 3 : COUNT > 3 ? (MT > 2 ? 3 : 5) : 6;
    const int lane = threadIdx.x % 32;
    const unsigned address = (unsigned)__cvta_generic_to_shared(x) + (lane % 16 * stride + lane / 16 * 8) * 2;
    uint2 w[AHEAD][COUNT];
    weight += lane;
    auto ask_slab = [&](int k) {
        if (k < W::slabs)
#pragma unroll
            for (int j = 0; j < COUNT; j++)
                w[k % AHEAD][j] = ask(weight + (k * W::tiles + j / GROUP * STEP + j % GROUP) * 32);
    };
#pragma unroll
    for (int k = 0; k < AHEAD - 1; k++) ask_slab(k);
#pragma unroll
    for (int k = 0; k < W::slabs; k++) {
        ask_slab(k + AHEAD - 1);
        unsigned a[MT][4];
#pragma unroll
        for (int i = 0; i < MT; i++) load_tile(a[i], address + (i * 16 * stride + k * 16) * 2);
#pragma unroll
        for (int i = 0; i < MT; i++)
#pragma unroll
            for (int j = 0; j < COUNT; j++) multiply_tile(sums[j][i], a[i], w[k % AHEAD][j]);
    }
}
#endif

// The rows of one block: which they are, and which of them and which columns this warp has.
struct Place {
    int lane = threadIdx.x % 32, columns = threadIdx.x / 32 % COLUMNS, row0 = threadIdx.x / 32 / COLUMNS * 16 * MT;
    int seed = blockIdx.y, first = blockIdx.x * ROWS, rows;
    __device__ Place(int total) : rows(min(ROWS, total - first)) {}

    // f(j, i, half, row of the block, column) for all pairs of neighbouring numbers that this thread has of COUNT tiles
    // in steps of COLUMNS: the halves of tiles [j][i].
    template <int COUNT, class Do>
    __device__ void each(Do f) const {
#pragma unroll
        for (int j = 0; j < COUNT; j++)
#pragma unroll
            for (int i = 0; i < MT; i++)
#pragma unroll
                for (int half = 0; half < 2; half++) f(j, i, half, row(i, half), column(j));
    }

    // Two neighbouring numbers of an array of rows; of a row or column beyond the last, the last ones.
    __device__ unsigned pair(const bf16* x, int width, int row, int column) const {
        return __ldg((const unsigned*)(x + (long long)min(row, rows - 1) * width + min(column, width - 2)));
    }

    __device__ int row(int i, int half) const { return row0 + i * 16 + half * 8 + lane / 4; }
    __device__ int column(int j) const { return (columns + COLUMNS * j) * 8 + lane % 4 * 2; }
};

// f(row, column, x, y, more) with two neighbouring outputs of a whole layer of rows `x`, and with what `more(row,
// column)` reads from the GPU's memory: it is asked for before the product, and without a branch, so that all of it
// comes meanwhile.
template <class W, class More, class Do>
__device__ void layer(const Place& at, const bf16* x, int stride, const uint2* weight, More more, Do f) {
    constexpr int COUNT = W::tiles / COLUMNS;
    unsigned read[COUNT][MT][2];
    at.each<COUNT>([&](int j, int i, int half, int row, int column) { read[j][i][half] = more(row, column); });
    float sums[COUNT][MT][4] = {};
    multiply<COUNT, W, COLUMNS>(sums, x + at.row0 * stride, stride, weight + at.columns * 32);
    at.each<COUNT>([&](int j, int i, int half, int row, int column) {
        f(row, column, sums[j][i][2 * half], sums[j][i][2 * half + 1], read[j][i][half]);
    });
}

template <class W, class Do>
__device__ void layer(const Place& at, const bf16* x, int stride, const uint2* weight, Do f) {
    layer<W>(
        at, x, stride, weight, [](int, int) { return 0u; },
        [&](int row, int column, float u, float v, unsigned) { f(row, column, u, v); });
}

// Of shared memory, all zero at first: columns that fill a slab up must be numbers.
extern __shared__ uint4 memory[];

__device__ inline void clear(int bytes) {
    for (int i = threadIdx.x; i < bytes / 16; i += THREADS) memory[i] = uint4{0, 0, 0, 0};
    __syncthreads();
}

__device__ inline void put(bf16* x, float a, float b) { *(unsigned*)x = rounded(a, b); }
__device__ inline void put(bf16* x, float a) { *x = (bf16)rounded(a, a); }

// Rows of WIDTH (even) numbers, that lie so far apart here and there: 16 bytes at a time where rows are whole ones.
template <int WIDTH>
__device__ void copy_rows(bf16* to, int to_stride, const bf16* from, int from_stride, int rows) {
    constexpr int many = WIDTH % 8 ? 2 : 8, steps = WIDTH / many;
#pragma unroll 4
    for (int i = threadIdx.x; i < rows * steps; i += THREADS) {
        bf16* x = to + i / steps * to_stride + i % steps * many;
        const bf16* y = from + i / steps * from_stride + i % steps * many;
        if constexpr (WIDTH % 8)
            *(unsigned*)x = *(const unsigned*)y;
        else
            *(uint4*)x = *(const uint4*)y;
    }
}

template <int WIDTH>
__device__ void store(bf16* to, const bf16* from, int stride, int rows) {
    copy_rows<WIDTH>(to, WIDTH, from, stride, rows);
}

template <int WIDTH>
__device__ void load(bf16* to, const bf16* from, int stride, int rows) {
    copy_rows<WIDTH>(to, stride, from, WIDTH, rows);
}
