// Filtering by the recurrent state-space model as two kernels: `filter_steps` runs all steps forward, `unfilter_steps`
// takes gradients back to the sums of its products.
//
// Steps wait for each other and have few rows, so that what counts is the time of one step. A cluster of blocks takes
// TILE rows through all steps. Each block has a share of every large product's columns, whose weights it holds for all
// steps: in registers those on which all others wait, in shared memory the rest. Blocks tell each other their shares of
// the results, twice a step; meanwhile they multiply what is not needed at once. Small products every block takes
// whole.
//
// Arrays are (seed, step, row, ...). The first latent is zero. A warp has at most one tile of 8 columns of a share.

constexpr int CLUSTER = 4, WARPS = 8, CREW = WARPS * 32, TILE = 16;
constexpr int ZP = up(Z, 8), TZ = ZP / 8;
constexpr int TD = up(D, 8 * CLUSTER) / 8 / CLUSTER, TN = up(N, 8 * CLUSTER) / 8 / CLUSTER;  // tiles of a share
constexpr int ALL_N = N / 8, MANY = up(ALL_N, WARPS) / WARPS;  // tiles of all shares, and how many a warp has of them
constexpr int DS = apart(D), NS = apart(N), XS = apart(Z), OS = apart(2 * ZP);
static_assert(TD <= WARPS && TN <= WARPS && TZ <= WARPS && D % 8 == 0 && N % 8 == 0 && Z % 2 == 0, "too large, or odd");

#ifndef ON_CPU
__device__ inline unsigned ask(const unsigned* x) {
    unsigned y;
    asm volatile("ld.global.nc.u32 %0, [%1];" : "=r"(y) : "l"(x));
    return y;
}

__device__ inline uint4 ask(const uint4* x) {
    uint4 y;
    asm volatile("ld.global.nc.v4.u32 {%0,%1,%2,%3}, [%4];" : "=r"(y.x), "=r"(y.y), "=r"(y.z), "=r"(y.w) : "l"(x));
    return y;
}

__device__ inline uint2 ask(const uint2* x) {
    uint2 y;
    asm volatile("ld.global.nc.v2.u32 {%0,%1}, [%2];" : "=r"(y.x), "=r"(y.y) : "l"(x));
    return y;
}

__device__ inline void load_rows(unsigned (&a)[4], const bf16* x, int stride) {
    const int lane = threadIdx.x % 32;
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(a[0]), "=r"(a[1]), "=r"(a[2]), "=r"(a[3])
                 : "r"((unsigned)__cvta_generic_to_shared(x + lane % 16 * stride + lane / 16 * 8)));
}

// 16 bytes to this place of another block's shared memory.
__device__ inline void send(bf16* place, int block, uint4 x) {
    unsigned there;
    asm("mapa.shared::cluster.u32 %0, %1, %2;"
        : "=r"(there)
        : "r"((unsigned)__cvta_generic_to_shared(place)), "r"(block));
    asm volatile("st.shared::cluster.v4.u32 [%0], {%1,%2,%3,%4};" ::"r"(there), "r"(x.x), "r"(x.y), "r"(x.z), "r"(x.w)
                 : "memory");
}

// Past `wait` is what all of the cluster's threads did before `arrive`, which waits for what a thread wrote, to the
// GPU's memory, too: results are stored after it.
__device__ inline void arrive() { asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory"); }
__device__ inline void wait() { asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory"); }
#endif

// COUNT of a weight's tiles of columns, STEP apart, or each of another weight, in shared memory or in registers.
template <int COUNT, class W, int STEP, int NEXT = 0>
struct Near {
    static constexpr int count = COUNT, slabs = W::slabs;
    const uint2* weight;
    __device__ Near(const uint2* first) : weight(first + threadIdx.x % 32) {}
    __device__ uint2 operator()(int k, int j) const { return weight[j * NEXT + (k * W::tiles + j * STEP) * 32]; }
};

template <int COUNT, class W, int STEP, int NEXT = 0>
struct Held {
    static constexpr int count = COUNT, slabs = W::slabs;
    uint2 weight[slabs][COUNT];
    __device__ Held(const uint2* first) {
#pragma unroll
        for (int k = 0; k < slabs; k++)
#pragma unroll
            for (int j = 0; j < COUNT; j++)
                weight[k][j] = ask(first + threadIdx.x % 32 + j * NEXT + (k * W::tiles + j * STEP) * 32);
    }
    __device__ uint2 operator()(int k, int j) const { return weight[k][j]; }
};

// sums[j] += rows x weight's tile j; the rows of tile j lie GAP further each. Where there are few sums, each is taken
// as two, since one product has to wait for the one before.
template <int GAP = 0, class Weights, int COUNT>
__device__ void multiply(float (&sums)[COUNT][4], const bf16* x, int stride, const Weights& weight) {
    static_assert(COUNT == Weights::count, "a sum for each tile");
    float odd[COUNT][4] = {};
    unsigned a[4];
#pragma unroll
    for (int k = 0; k < Weights::slabs; k++)
#pragma unroll
        for (int j = 0; j < COUNT; j++) {
            if (GAP || j == 0) load_rows(a, x + j * GAP + k * 16, stride);
            multiply_tile(COUNT < 3 && k % 2 ? odd[j] : sums[j], a, weight(k, j));
        }
#pragma unroll
    for (int j = 0; j < COUNT && COUNT < 3; j++)
#pragma unroll
        for (int e = 0; e < 4; e++) sums[j][e] += odd[j][e];
}

// What a thread has: of a tile the columns `q` and `q` + 1, in the rows `row` and `row` + 8.
struct Crew {
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32, q = lane % 4 * 2, row = lane / 4;
    int seed = blockIdx.y, rank = blockIdx.x % CLUSTER, first = blockIdx.x / CLUSTER * TILE;
    int d = rank * TD + warp, n = rank * TN + warp;  // this warp's tiles of belief and hidden units
    bool has_d = warp < TD && d * 8 < D, has_n = warp < TN && n * 8 < N, has_z = warp < TZ;
    int column_d = min(d * 8, D - 8) + q, column_n = min(n * 8, N - 8) + q, column_z = min(warp * 8 + q, Z - 2);
    bool z = has_z && warp * 8 + q < Z;

    __device__ bool live(int half) const { return first + row + half * 8 < B; }
    // Rows that there are not are the last one: all can be read, and none waits for a branch.
    __device__ int at(int t, int half) const { return (seed * T + t) * B + min(first + row + half * 8, B - 1); }

    // Two columns of both rows, to all blocks. Four lanes have 16 bytes of a row; each sends them to another block.
    __device__ void share(bf16* x, int stride, int column, const unsigned (&pairs)[2]) const {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            uint4 all;
            all.x = __shfl_sync(~0u, pairs[half], lane / 4 * 4),
            all.y = __shfl_sync(~0u, pairs[half], lane / 4 * 4 + 1);
            all.z = __shfl_sync(~0u, pairs[half], lane / 4 * 4 + 2),
            all.w = __shfl_sync(~0u, pairs[half], lane / 4 * 4 + 3);
            for (int block = lane % 4; block < CLUSTER; block += 4)
                send(x + (row + half * 8) * stride + column - q, block, all);
        }
    }
};

__device__ inline void put(bf16* x, float a, float b) { *(unsigned*)x = rounded(a, b); }

// Shared memory: zero at first, since columns that fill a slab up must be numbers, then weights.
__device__ inline uint2* prepare(int bytes, const uint2* common, int commons, const uint2* own, int owns) {
    for (int i = threadIdx.x; i < bytes / 16; i += CREW) memory[i] = uint4{0, 0, 0, 0};
    uint2* weights = (uint2*)((char*)memory + bytes);
    // Two at once: of an even number each.
#pragma unroll 8
    for (int i = threadIdx.x; i < commons / 2; i += CREW) ((uint4*)weights)[i] = ((const uint4*)common)[i];
#pragma unroll 8
    for (int i = threadIdx.x; i < owns / 2; i += CREW) ((uint4*)(weights + commons))[i] = ((const uint4*)own)[i];
    arrive(), wait();  // all blocks are there and have cleared
    return weights;
}

__device__ inline float2 ask_two(const float* x) {
    const uint2 pair = ask((const uint2*)x);
    return float2{__uint_as_float(pair.x), __uint_as_float(pair.y)};
}

__device__ inline unsigned ask_pair(const bf16* x) { return ask((const unsigned*)x); }
__device__ inline void store_two(float* x, float a, float b) { *(float2*)x = float2{a, b}; }
__device__ inline void store_pair(bf16* x, unsigned pair) { *(unsigned*)x = pair; }
