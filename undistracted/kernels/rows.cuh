// Rows in registers. A warp takes 16 rows through one layer after another: what the tensor cores put out lies in its
// registers just as they take it in, so that between layers nothing is written, and no warp waits for another. All
// warps of a block share the weights, which come through a ring in shared memory, in the order in which they are used,
// brought by one more warp.
//
// A thread has numbers of two rows, `half` 0 and 1. Of a tile of 8 columns it has two neighbours; columns are dealt to
// four tiles such that the thread's are eight neighbours (`dealt` in kernels/weights.py), 16 bytes to load or to store.
//
// Compiled for one set of sizes: D belief, Z state, A actions, N units of the world model's layers, M of the heads', H
// steps of n rows, WARPS that have rows, MEMORY bytes of a block.

constexpr int CREW = WARPS * 32, THREADS = CREW + 32, STAGE = 32;  // tiles that a stage of the ring has room for
constexpr int ZP = up(Z, 8), AP = up(A, 8), F = D + ZP;            // states and actions fill tiles
constexpr int TD = D / 8, TN = N / 8, TM = M / 8, TZ = ZP / 8, TA = AP / 8, TF = TD + TZ;
static_assert(D % 8 == 0 && N % 8 == 0 && M % 8 == 0 && Z % 2 == 0, "rows of whole 16 bytes");

template <int T>
using Sums = float[T][4];  // two of row 0, two of row 1
template <int T>
using Tiles = unsigned[T][2];  // the same, rounded

#ifndef ON_CPU
__device__ inline unsigned shared(const void* x) { return (unsigned)__cvta_generic_to_shared(x); }

__device__ inline uint2 ask_near(const uint2* x) {
    uint2 y;
    asm volatile("ld.shared.v2.u32 {%0,%1}, [%2];" : "=r"(y.x), "=r"(y.y) : "r"(shared(x)));
    return y;
}

using Gate = unsigned long long;  // opens, turn after turn, once as many have arrived as it counts

__device__ inline void make(Gate* gate, int count) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared(gate)), "r"(count) : "memory");
}

__device__ inline void publish_gates() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }

__device__ inline void pass(Gate* gate, int turn) {
    unsigned open;
    do asm volatile(
            "{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
            : "=r"(open)
            : "r"(shared(gate)), "r"(turn)
            : "memory");
    while (!open);
}

__device__ inline void arrive(Gate* gate) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared(gate)) : "memory");
}

// Arrives at the gate once all bytes have.
__device__ inline void bring(Gate* gate, void* to, const void* from, int bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared(gate)), "r"(bytes) : "memory");
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                     shared(to)),
                 "l"(from), "r"(bytes), "r"(shared(gate))
                 : "memory");
}
#endif

// --- weights ---------------------------------------------------------------------------------------------------------

// As many stages as a block's memory has room for beside the OWN bytes of its kernel, behind which it lies.
template <int OWN>
struct Ring {
    static constexpr int stages = (MEMORY - OWN) / (STAGE * 256 + 16);
    static_assert(OWN % 128 == 0 && stages >= 3, "too little memory");
    uint2* memory;
    Gate *full, *empty;
    int stage = 0, turn = 0;

    __device__ Ring(uint4* all) {
        memory = (uint2*)((char*)all + OWN);
        full = (Gate*)(memory + stages * STAGE * 32), empty = full + stages;
        if (threadIdx.x == 0) {
            for (int i = 0; i < stages; i++) make(full + i, 1), make(empty + i, WARPS);
            publish_gates();
        }
    }

    __device__ void next() {
        if (++stage == stages) stage = 0, turn ^= 1;
    }

    // Slabs of a weight that come at once.
    template <class W>
    static constexpr int many = STAGE / W::tiles;

    // What one thread of the last warp does: a whole weight, from which the next one follows.
    template <class W>
    __device__ void bring_weight(const uint2*& weight) {
        for (int slab = 0; slab < W::slabs; slab += many<W>, next()) {
            const int size = min(many<W>, W::slabs - slab) * W::tiles * 32;
            pass(empty + stage, turn ^ 1);
            bring(full + stage, memory + stage * STAGE * 32, weight, size * 8);
            weight += size;
        }
    }

    // sums(tile) += rows x weight. Weights are asked for a few tiles before they are needed.
    template <class W, int X, class To>
    __device__ void multiply(const Tiles<X>& x, To sums) {
        constexpr int AHEAD = 6, ALL = W::slabs * W::tiles, AT_ONCE = many<W> * W::tiles;
        static_assert(AT_ONCE > 0 && up(X, 2) == 2 * W::slabs, "a weight for these rows, of no more than a stage");
        const int lane = threadIdx.x % 32;
        uint2 w[AHEAD];
        auto ask = [&](int i) {
            if (i >= ALL) return;
            if (i % AT_ONCE == 0) pass(full + stage, turn);
            w[i % AHEAD] = ask_near(memory + (stage * STAGE + i % AT_ONCE) * 32 + lane);
            if (i % AT_ONCE == AT_ONCE - 1 || i == ALL - 1) {
                __syncwarp();
                if (lane == 0) arrive(empty + stage);
                next();
            }
        };
#pragma unroll
        for (int i = 0; i < AHEAD; i++) ask(i);
#pragma unroll
        for (int i = 0; i < ALL; i++) {
            const int k = i / W::tiles * 2;
            const unsigned rows[4] = {x[k][0], x[k][1], k + 1 < X ? x[(k + 1) % X][0] : 0,
                                      k + 1 < X ? x[(k + 1) % X][1] : 0};
            const uint2 now = w[i % AHEAD];
            multiply_tile(sums(i % W::tiles), rows, now);
            ask(i + AHEAD);
        }
    }

    template <class W, int X, int T>
    __device__ void multiply(const Tiles<X>& x, Sums<T>& sums) {
        static_assert(T == W::tiles, "a sum for each tile");
        multiply<W>(x, [&](int tile) -> float(&)[4] { return sums[tile]; });
    }
};

// --- rows ------------------------------------------------------------------------------------------------------------

// The first of the two columns that this thread has of one of T tiles.
template <int T>
__device__ int column(int tile) {
    const int q = threadIdx.x % 4;
    return tile < T / 4 * 4 ? tile / 4 * 32 + q * 8 + tile % 4 * 2 : tile * 8 + q * 2;
}

// Which rows of an array this thread has; one beyond the last reads the last, and is not written.
struct Place {
    int seed = blockIdx.y, first, total;
    __device__ Place(int total)
        : first((blockIdx.x * WARPS + threadIdx.x / 32) * 16 + threadIdx.x % 32 / 4), total(total) {}
    __device__ bool has(int half) const { return first + half * 8 < total; }
    __device__ int row(int half) const { return min(first + half * 8, total - 1); }

    // T tiles of rows of this width, to those from FROM on.
    template <int T, int FROM = 0, int X>
    __device__ void load(Tiles<X>& x, const bf16* from, int width) const {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const bf16* own = from + row(half) * width;
#pragma unroll
            for (int j = 0; j < T; j++)
                if (j >= T / 4 * 4)
                    x[FROM + j][half] = __ldg((const unsigned*)(own + column<T>(j)));
                else if (j % 4 == 0) {
                    const uint4 y = __ldg((const uint4*)(own + column<T>(j)));
                    x[FROM + j][half] = y.x, x[FROM + j + 1][half] = y.y;
                    x[FROM + j + 2][half] = y.z, x[FROM + j + 3][half] = y.w;
                }
        }
    }

    template <int T, int FROM = 0, int X>
    __device__ void store(const Tiles<X>& x, bf16* to, int width) const {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            if (!has(half)) continue;
            bf16* own = to + row(half) * width;
#pragma unroll
            for (int j = 0; j < T; j++)
                if (j >= T / 4 * 4)
                    *(unsigned*)(own + column<T>(j)) = x[FROM + j][half];
                else if (j % 4 == 0)
                    *(uint4*)(own + column<T>(j)) = uint4{x[FROM + j][half], x[FROM + j + 1][half],
                                                          x[FROM + j + 2][half], x[FROM + j + 3][half]};
        }
    }
};

// A thread's own tiles in shared memory: what it will need again, but has no registers for.
template <int T>
struct Stash {
    static constexpr int size = T * 8 * CREW;
    uint2* own;
    __device__ Stash(void* place) : own((uint2*)place + threadIdx.x) {}
    __device__ void put(int tile, unsigned x, unsigned y) { own[tile * CREW] = uint2{x, y}; }
    __device__ void put(const Tiles<T>& x) {
#pragma unroll
        for (int j = 0; j < T; j++) put(j, x[j][0], x[j][1]);
    }
    __device__ void get(Tiles<T>& x) const {
#pragma unroll
        for (int j = 0; j < T; j++) {
            const uint2 y = own[j * CREW];
            x[j][0] = y.x, x[j][1] = y.y;
        }
    }
};

// The same, unrounded.
template <int T>
struct Exact {
    static constexpr int size = T * 16 * CREW;
    float4* own;
    __device__ Exact(void* place) : own((float4*)place + threadIdx.x) {}
    __device__ void put(int tile, const float (&x)[4]) { own[tile * CREW] = float4{x[0], x[1], x[2], x[3]}; }
    __device__ void get(int tile, float (&x)[4]) const {
        const float4 y = own[tile * CREW];
        x[0] = y.x, x[1] = y.y, x[2] = y.z, x[3] = y.w;
    }
    template <int X>
    __device__ void get(Tiles<X>& x) const {
#pragma unroll
        for (int j = 0; j < T; j++) {
            float y[4];
            get(j, y);
            x[j][0] = rounded(y[0], y[1]), x[j][1] = rounded(y[2], y[3]);
        }
    }
};

// f(tile, half, e) with e = 2 half and 2 half + 1 the places of a pair among a tile's sums.
template <int T, class Do>
__device__ void each(Do f) {
#pragma unroll
    for (int j = 0; j < T; j++)
#pragma unroll
        for (int half = 0; half < 2; half++) f(j, half, 2 * half);
}

template <int T>
__device__ void clear(Sums<T>& sums) {
    each<T>([&](int j, int half, int e) { sums[j][e] = sums[j][e + 1] = 0; });
}

// A product begins with the bias.
template <int T>
__device__ void begin(Sums<T>& sums, const float* bias) {
#pragma unroll
    for (int j = 0; j < T; j++) {
        const float2 b = *(const float2*)(bias + column<T>(j));
        sums[j][0] = sums[j][2] = b.x, sums[j][1] = sums[j][3] = b.y;
    }
}

template <int T>
__device__ void elu(Tiles<T>& y, const Sums<T>& sums) {
    each<T>([&](int j, int half, int e) { y[j][half] = rounded(elu(sums[j][e]), elu(sums[j][e + 1])); });
}

// In place: a layer's outputs turn into the gradient of its sums, given that of its outputs.
template <int T>
__device__ void blame_sums(Tiles<T>& y, const Sums<T>& by) {
    each<T>([&](int j, int half, int e) {
        y[j][half] = rounded(by[j][e] * elu_slope(low(y[j][half])), by[j][e + 1] * elu_slope(high(y[j][half])));
    });
}

// Over the threads that have numbers of the same rows.
__device__ inline float sum_of_four(float x) {
#pragma unroll
    for (int i = 1; i < 4; i *= 2)
        x += __uint_as_float(__shfl_sync(~0u, __float_as_uint(x), threadIdx.x % 32 ^ i));
    return x;
}

// Biases, or whatever all rows need, from the GPU's memory; all of a block's threads take part.
__device__ inline void copy(float* to, const float* from, int size) {
    for (int i = threadIdx.x; i < size; i += THREADS) to[i] = from[i];
}
