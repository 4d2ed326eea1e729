// Rows of a warp. A warp takes 16 rows through one layer after another and waits for no other: a thread has of a layer's
// outputs just what the tensor cores will want of it as the next one's inputs, and keeps them in shared memory that is
// its own. All warps of a block share the weights, which come through a ring in shared memory, in the order in which they
// are used, brought by one more warp.
//
// A thread has numbers of two rows, `half` 0 and 1. Of a tile of 8 columns it has two neighbours; columns are dealt to
// four tiles such that the thread's are eight neighbours (`dealt` in kernels/weights.py), 16 bytes to load or to store.
//
// Products are loops over slabs: unrolled, a kernel's text would not fit the processors' cache for it, which costs more
// than all products.
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

__device__ inline bool open(Gate* gate, int turn) {
    unsigned open;
    asm volatile("{ .reg .pred p; mbarrier.test_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
                 : "=r"(open)
                 : "r"(shared(gate)), "r"(turn)
                 : "memory");
    return open;
}

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
// Of whole 16 bytes.
__device__ inline void prefetch(const void* from, int bytes) {
    asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(from), "r"(bytes) : "memory");
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
#pragma unroll 1
        for (int slab = 0; slab < W::slabs; slab += many<W>, next()) {
            const int size = min(many<W>, W::slabs - slab) * W::tiles * 32;
            pass(empty + stage, turn ^ 1);
            bring(full + stage, memory + stage * STAGE * 32, weight, size * 8);
            weight += size;
        }
    }

    __device__ const uint2* here() const { return memory + stage * STAGE * 32 + threadIdx.x % 32; }

    // This warp is done with a stage, which may be filled anew once all are.
    __device__ void leave(int old) {
        __syncwarp();
        if (threadIdx.x % 32 == 0) arrive(empty + old);
    }

    // sums(tile) += rows x weight, of which `x` has as many slabs. Weights are asked for a few tiles before they are
    // needed, those of the next slab too, and whether its stage is full even before. What is asked for behind the last
    // slab nobody uses.
    template <class W, class X, class To>
    __device__ void multiply(const X& x, To sums) {
        constexpr int AHEAD = W::tiles < 6 ? W::tiles : 6, EARLY = (W::tiles - AHEAD) / 2;
        static_assert(many<W> > 0 && W::slabs <= X::slabs, "of no more than a stage, for rows as long");
        pass(full + stage, turn);
        const uint2* weight = here();
        uint2 w[AHEAD], first[AHEAD];
#pragma unroll
        for (int j = 0; j < AHEAD; j++) first[j] = ask_near(weight + j * 32);
        const uint4* place = x.own;
        uint4 own = *place;
#pragma unroll 1
        for (int slab = W::slabs - 1, left = many<W>; slab >= 0; slab--) {
            const unsigned rows[4] = {own.x, own.y, own.z, own.w};
            const int old = stage;
            const uint2* next_slab = weight + W::tiles * 32;
            bool last = true, ready = true;
#pragma unroll
            for (int j = 0; j < AHEAD; j++) w[j] = first[j];
#pragma unroll
            for (int j = 0; j < W::tiles; j++) {
                if (j == EARLY) {
                    last = many<W> == 1 || --left == 0 || slab == 0;
                    if (last) next(), left = many<W>, next_slab = here(), ready = slab == 0 || open(full + stage, turn);
                }
                if (j == W::tiles - AHEAD) {
                    if (!ready) pass(full + stage, turn);
#pragma unroll
                    for (int i = 0; i < AHEAD; i++) first[i] = ask_near(next_slab + i * 32);
                    own = *(place += CREW);
                }
                multiply_tile(sums(j), rows, w[j % AHEAD]);
                if (j + AHEAD < W::tiles) w[j % AHEAD] = ask_near(weight + (j + AHEAD) * 32);
            }
            if (last) leave(old);
            weight = next_slab;
        }
    }

    // The same of rows that are in registers still: unrolled, so for few tiles.
    template <class W, int X, int T>
    __device__ void multiply_held(const Tiles<X>& x, Sums<T>& sums) {
        static_assert(T == W::tiles && up(X, 2) == 2 * W::slabs, "a sum for each tile, and rows as long");
#pragma unroll
        for (int slab = 0; slab < W::slabs; slab++) {
            if (slab % many<W> == 0) pass(full + stage, turn);
            const uint2* weight = here() + slab % many<W> * T * 32;
            const int k = 2 * slab;
            const bool two = k + 1 < X;
            const unsigned rows[4] = {x[k][0], x[k][1], two ? x[(k + 1) % X][0] : 0, two ? x[(k + 1) % X][1] : 0};
            uint2 w[T];
#pragma unroll
            for (int j = 0; j < T; j++) w[j] = ask_near(weight + j * 32);
#pragma unroll
            for (int j = 0; j < T; j++) multiply_tile(sums[j], rows, w[j]);
            if (slab % many<W> == many<W> - 1 || slab == W::slabs - 1) leave(stage), next();
        }
    }

    template <class W, class X, int T>
    __device__ void multiply(const X& x, Sums<T>& sums) {
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

// f(first, y) for four tiles of T at a time; the last may be fewer, and what it lacks is zero.
template <int T, class Do>
__device__ void by_fours(Do f) {
#pragma unroll
    for (int first = 0; first < T; first += 4) {
        Tiles<4> y = {};
        f(first, y);
    }
}

// Which rows of an array this thread has. One beyond the last is the last once more: it writes the same.
struct Place {
    int seed = blockIdx.y, first, total;
    __device__ Place(int total)
        : first((blockIdx.x * WARPS + threadIdx.x / 32) * 16 + threadIdx.x % 32 / 4), total(total) {}
    __device__ bool has(int half) const { return first + half * 8 < total; }
    __device__ int row(int half) const { return min(first + half * 8, total - 1); }

    // The warp's rows of an array (.., n, width) are soon in the GPU's cache.
    template <class X>
    __device__ void expect(const X* from, int width) const {
        const int rows = min(16, total - first);
        if (n % 8 == 0 && threadIdx.x % 32 == 0 && rows > 0) prefetch(from + first * width, rows * width * sizeof(X));
    }

    // Four tiles of T, of rows of this width. What this kernel WROTE is not in the cache for constants.
    template <int T, bool WROTE = false>
    __device__ void load(Tiles<4>& y, int first, const bf16* from, int width) const {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const bf16* own = from + row(half) * width;
            if (first + 4 <= T) {
                const uint4* place = (const uint4*)(own + column<T>(first));
                const uint4 four = WROTE ? *place : __ldg(place);
                y[0][half] = four.x, y[1][half] = four.y, y[2][half] = four.z, y[3][half] = four.w;
            } else
#pragma unroll
                for (int j = 0; j < T - first; j++) {
                    const unsigned* place = (const unsigned*)(own + column<T>(first + j));
                    y[j][half] = WROTE ? *place : __ldg(place);
                }
        }
    }

    // ONCE: where it was read before.
    template <int T, bool ONCE = false>
    __device__ void store(const Tiles<4>& y, int first, bf16* to, int width) const {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            if (ONCE && !has(half)) continue;
            bf16* own = to + row(half) * width;
            if (first + 4 <= T)
                *(uint4*)(own + column<T>(first)) = uint4{y[0][half], y[1][half], y[2][half], y[3][half]};
            else
#pragma unroll
                for (int j = 0; j < T - first; j++) *(unsigned*)(own + column<T>(first + j)) = y[j][half];
        }
    }
};

// A thread's own numbers of T tiles, rounded, as the tensor cores take them: two tiles are a slab.
template <int T>
struct Rows {
    static constexpr int slabs = (T + 1) / 2, size = slabs * 16 * CREW;
    uint4* own;
    __device__ Rows(void* place) : own((uint4*)place + threadIdx.x) {}

    // Four tiles from an even one on, as far as there is room.
    __device__ void put(const Tiles<4>& y, int first) const {
        own[first / 2 * CREW] = uint4{y[0][0], y[0][1], y[1][0], y[1][1]};
        if (first / 2 + 1 < slabs) own[(first / 2 + 1) * CREW] = uint4{y[2][0], y[2][1], y[3][0], y[3][1]};
    }

    __device__ void get(Tiles<4>& y, int first) const {
        const uint4 a = own[first / 2 * CREW];
        y[0][0] = a.x, y[0][1] = a.y, y[1][0] = a.z, y[1][1] = a.w;
        if (first / 2 + 1 >= slabs) return;
        const uint4 b = own[(first / 2 + 1) * CREW];
        y[2][0] = b.x, y[2][1] = b.y, y[3][0] = b.z, y[3][1] = b.w;
    }

    // One tile. Zeros of a weight meet what fills up the last slab, which must be a number.
    __device__ void put_tile(int tile, unsigned row_0, unsigned row_8) const {
        ((uint2*)(own + tile / 2 * CREW))[tile % 2] = uint2{row_0, row_8};
    }
};

// The same, unrounded.
template <int T>
struct Exact {
    static constexpr int size = T * 16 * CREW;
    float4* own;
    __device__ Exact(void* place) : own((float4*)place + threadIdx.x) {}
    __device__ void put(int tile, const float (&x)[4]) const { own[tile * CREW] = float4{x[0], x[1], x[2], x[3]}; }
    __device__ void get(int tile, float (&x)[4]) const {
        const float4 y = own[tile * CREW];
        x[0] = y.x, x[1] = y.y, x[2] = y.z, x[3] = y.w;
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

// Outputs of a layer from its products, as the next one's inputs, and, where `to` is given, to the GPU's memory. The
// bias comes last: sums that began with it would be moved at each step of the product's loop.
template <int T, class To>
__device__ void elu(const Place& at, const Sums<T>& sums, const float* bias, const To& y, bf16* to) {
    by_fours<T>([&](int first, Tiles<4>& out) {
#pragma unroll
        for (int j = 0; j < 4 && first + j < T; j++) {
            const float2 b = *(const float2*)(bias + column<T>(first + j));
#pragma unroll
            for (int half = 0; half < 2; half++)
                out[j][half] = rounded(elu(sums[first + j][2 * half] + b.x), elu(sums[first + j][2 * half + 1] + b.y));
        }
        y.put(out, first);
        if (to) at.store<T>(out, first, to, T * 8);
    });
}

// Four tiles of a layer's outputs turn into the gradient of its sums, given that of its outputs.
template <int T>
__device__ void blame_sums(Tiles<4>& y, int first, const Sums<T>& by) {
#pragma unroll
    for (int j = 0; j < 4 && first + j < T; j++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const float(&b)[4] = by[first + j];
            y[j][half] = rounded(b[2 * half] * elu_slope(low(y[j][half])), b[2 * half + 1] * elu_slope(high(y[j][half])));
        }
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
