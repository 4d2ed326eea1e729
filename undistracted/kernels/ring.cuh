// Weights of a block. All of its warps that have rows share them; they come through a ring of stages in shared memory, in
// the order in which they are used, brought by one more warp.
//
// Products are loops over slabs: unrolled, a kernel's text would not fit the processors' cache for it, which costs more
// than all products.
//
// Compiled for WARPS that have rows, and MEMORY bytes of a block.

constexpr int CREW = WARPS * 32, THREADS = CREW + 32, STAGE = 32;  // tiles that a stage of the ring has room for

template <int T>
using Sums = float[T][4];  // two of row 0, two of row 1
template <int T>
using Tiles = unsigned[T][2];  // the same, rounded

#ifndef ON_CPU
__device__ inline unsigned shared(const void* x) { return (unsigned)__cvta_generic_to_shared(x); }

// Volatile, so that the compiler keeps these loads in order. A warp's loads from shared memory come back in order: when
// the last is there, all are (`leave`).
__device__ inline uint2 ask_near(const uint2* x) {
    uint2 y;
    asm volatile("ld.volatile.shared.v2.u32 {%0,%1}, [%2];" : "=r"(y.x), "=r"(y.y) : "r"(shared(x)));
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

    // This warp is done with a stage, which is filled anew once all warps are. The copy that fills it does not wait for
    // loads that are still under way, and the compiler may move the products, which wait for them, behind the arrival.
    // So the arrival itself depends on what each lane loaded last: whether lane 0 or lane 1 arrives is known only when
    // that is there. An empty asm of it would not do: the compiler drops it.
    __device__ void leave(int old, uint2 loaded) {
        if (threadIdx.x % 32 == __any_sync(~0u, loaded.x == 1)) arrive(empty + old);
    }

    // sums(tile) += rows x weight, of which `x` has as many slabs. Weights are asked for a few tiles before they are
    // needed, those of the next slab too, and whether its stage is full even before. Behind the last slab, too, some are
    // asked for, perhaps while their stage is being filled: nobody uses them.
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
            if (last) leave(old, w[(W::tiles - 1) % AHEAD]);  // the slab's last tile
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
            if (slab % many<W> == many<W> - 1 || slab == W::slabs - 1) leave(stage, w[T - 1]), next();
        }
    }

    template <class W, class X, int T>
    __device__ void multiply(const X& x, Sums<T>& sums) {
        static_assert(T == W::tiles, "a sum for each tile");
        multiply<W>(x, [&](int tile) -> float(&)[4] { return sums[tile]; });
    }
};
