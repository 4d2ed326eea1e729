// The gradient of a layer's weight and bias: x^T s over all rows, x a layer's inputs and s the gradient of its sums,
// or, where they are SCALED, s times a number for each row. A block has a share of the rows and all of the product, in
// the registers of DOWN x ACROSS warps; rows come STAGES - 1 stages before they are multiplied. What the blocks of a
// cluster sum up to, (SHARES / CLUSTER, K + 1, M) with the bias last, is added up outside.
//
// Compiled for one set of sizes: K inputs and M outputs, ROWS_X rows of x of which the first SKIP do not count, ROWS_S
// of s.

constexpr int WARPS = DOWN * ACROSS, THREADS = WARPS * 32;
static_assert(K % 8 == 0 && M % 8 == 0, "rows of whole 16 bytes");

// A one stands behind the inputs, so that the bias comes as one more of them, and what scales a row behind that of s.
constexpr int XT = up(K + 1, 16 * DOWN) / 16 / DOWN, ST = up(M, 8 * ACROSS) / 8 / ACROSS;
constexpr int XS = XT * DOWN * 16 + 8, SS = up(ST * ACROSS, 2) * 8 + 8, SCALE = SS - 8;  // an odd number of 16 bytes
constexpr int SHARE = up(up(ROWS_S, SHARES) / SHARES, STAGE);

#ifndef ON_CPU  // tests emulate these on a CPU
// Computed where it stands: neither before the loop, which has no register left for it, nor anew for each use.
template <class T>
__device__ inline T here(T x) {
    if constexpr (sizeof(T) == 8)
        asm volatile("" : "+l"(x));
    else
        asm volatile("" : "+r"(x));
    return x;
}

__device__ inline unsigned address(const void* shared) { return (unsigned)__cvta_generic_to_shared(shared); }

// BYTES, or zeros in their place, are on their way from the GPU's to shared memory. What a thread asked for before a
// `commit` is a group; past `wait_copies` all of its groups but the last LEFT are there.
template <int BYTES>
__device__ inline void copy_async(void* to, const void* from, bool valid) {
    const int bytes = valid ? BYTES : 0;
    if constexpr (BYTES == 16)
        asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(address(to)), "l"(from), "r"(bytes)
                     : "memory");
    else
        asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(address(to)), "l"(from), "r"(bytes)
                     : "memory");
}

__device__ inline void commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }

template <int LEFT>
__device__ inline void wait_copies() {
    asm volatile("cp.async.wait_group %0;" ::"n"(LEFT) : "memory");
}

__device__ inline void arrive() { asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory"); }
__device__ inline void wait() { asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory"); }

// Where that block of the cluster has what this one has at `place`.
template <class T>
__device__ inline const T* of_block(const T* place, int number) {
    const T* there;
    asm("mapa.u64 %0, %1, %2;" : "=l"(there) : "l"(place), "r"(number % CLUSTER));
    return there;
}

// Of 16 rows of 16 numbers, turned, what this thread has to hold.
__device__ inline void load_turned(unsigned (&x)[4], unsigned from) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
                 : "r"(from));
}

// sums += x^T s for a stage of rows, XT tiles of 16 inputs and ST of 8 outputs.
template <int STAGE, int XS, int SS, int XT, int ST>
__device__ inline void multiply_turned(float (&sums)[XT][ST][4], const bf16* x, const bf16* s) {
    const int lane = threadIdx.x % 32;
    const unsigned from_x = here(address(x + (lane / 16 * 8 + lane % 8) * XS + lane / 8 % 2 * 8));
    const unsigned from_s = here(address(s + lane % 16 * SS + lane / 16 * 8));
#pragma unroll
    for (int k = 0; k < STAGE; k += 16) {
        unsigned a[XT][4], b[4];
#pragma unroll
        for (int i = 0; i < XT; i++) load_turned(a[i], from_x + (k * XS + i * 16) * 2);
#pragma unroll
        for (int j = 0; j < ST; j++) {
            if (j % 2 == 0) load_turned(b, from_s + (k * SS + j * 8) * 2);
#pragma unroll
            for (int i = 0; i < XT; i++)
                asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
                    "{%0,%1,%2,%3};"
                    : "+f"(sums[i][j][0]), "+f"(sums[i][j][1]), "+f"(sums[i][j][2]), "+f"(sums[i][j][3])
                    : "r"(a[i][0]), "r"(a[i][1]), "r"(a[i][2]), "r"(a[i][3]), "r"(b[j % 2 * 2]), "r"(b[j % 2 * 2 + 1]));
        }
    }
}
#endif

// A warp's rows of a stage are every WARPS-th: f(row, counted from the first of them).
template <class Do>
__device__ inline void each_row(int warp, Do f) {
#pragma unroll
    for (int i = 0; i < STAGE; i += WARPS)
        if (i + WARPS <= STAGE || i + warp < STAGE) f(i);
}

// f(column) for a thread's share of a row of WIDTH numbers, eight at a time, counted from the first.
template <int WIDTH, class Do>
__device__ inline void each_step(int lane, Do f) {
#pragma unroll
    for (int j = 0; j < WIDTH; j += 32 * 8)
        if (j + 32 * 8 <= WIDTH || j + lane * 8 < WIDTH) f(j);
}

// A stage of rows in shared memory.
struct Stage {
    bf16 *x, *s;

    __device__ Stage(int turn) : x((bf16*)memory + turn % STAGES * STAGE * (XS + SS)), s(x + STAGE * XS) {}

    // Asks for the rows of this seed from `first` on, a row by a warp, and for what scales them.
    __device__ void ask(const bf16* from_x, const bf16* from_s, const float* scale, int first) const {
        const int thread = here((int)threadIdx.x), lane = thread % 32, warp = thread / 32, seed = blockIdx.y;
        const int row = first + warp;
        from_x = here(from_x + (long long)(seed * ROWS_X + SKIP + row) * K + lane * 8);
        from_s = here(from_s + (long long)(seed * ROWS_S + row) * M + lane * 8);
        bf16 *to_x = here(x + warp * XS + lane * 8), *to_s = here(s + warp * SS + lane * 8);
        each_row(warp, [&](int i) {
            const bool valid = row + i < ROWS_S;
            each_step<K>(lane, [&](int j) { copy_async<16>(to_x + i * XS + j, from_x + i * K + j, valid); });
            each_step<M>(lane, [&](int j) { copy_async<16>(to_s + i * SS + j, from_s + i * M + j, valid); });
            if (SCALED && lane == 0) copy_async<4>(to_s + i * SS + SCALE, scale + seed * ROWS_S + row + i, valid);
        });
    }

    // Scales the rows for which this warp asked.
    __device__ void rescale() const {
        const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
        each_row(warp, [&](int i) {
            bf16* row = s + (i + warp) * SS;
            const float c = *(const float*)(row + SCALE);
            each_step<M>(lane, [&](int j) {
                uint4& y = *(uint4*)(row + j + lane * 8);
                y = uint4{rounded(c * low(y.x), c * high(y.x)), rounded(c * low(y.y), c * high(y.y)),
                          rounded(c * low(y.z), c * high(y.z)), rounded(c * low(y.w), c * high(y.w))};
            });
        });
    }
};

extern "C" __global__ void __cluster_dims__(CLUSTER, 1, 1) __launch_bounds__(THREADS, 1)
    weigh(const bf16* x, const bf16* s, const float* scale, float* sums) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, share = blockIdx.x, seed = blockIdx.y;
    const int first = share * SHARE, stages = up(max(min(SHARE, ROWS_S - first), 0), STAGE) / STAGE;
    const int own_x = warp / ACROSS * XT * 16, own_s = warp % ACROSS * ST * 8;
    auto ask = [&](int t) {
        if (t < stages) Stage(t).ask(x, s, scale, first + t * STAGE);
        commit();
    };
    auto rescale = [&](int t) {
        if (SCALED && t < stages) Stage(t).rescale();
    };
    for (int i = threadIdx.x; i < STAGES * STAGE; i += THREADS) Stage(i / STAGE).x[i % STAGE * XS + K] = 0x3f80;  // one
#pragma unroll 1
    for (int t = 0; t < STAGES - 1; t++) ask(t);
    wait_copies<STAGES - 2>();
    __syncthreads();
    rescale(0);
    float total[XT][ST][4] = {};
#pragma unroll 1
    for (int t = 0; t < stages; t++) {
        auto prepare = [&] { ask(t + STAGES - 1), rescale(t + 1); };
        wait_copies<STAGES - 2 - SCALED>();
        __syncthreads();  // and all are done with the stage before this one, into whose place the next goes
        const bool early = warp / 4 % 2;  // so that of the warps that share tensor cores half multiply meanwhile
        if (early) prepare();
        multiply_turned<STAGE, XS, SS>(total, Stage(t).x + own_x, Stage(t).s + own_s);
        if (!early) prepare();
    }
    __syncthreads();
    float* product = (float*)memory;
#pragma unroll
    for (int i = 0; i < XT; i++)
#pragma unroll
        for (int j = 0; j < ST; j++)
#pragma unroll
            for (int half = 0; half < 2; half++) {
                const int input = own_x + i * 16 + half * 8 + lane / 4, output = own_s + j * 8 + lane % 4 * 2;
                const float2 y{total[i][j][half * 2], total[i][j][half * 2 + 1]};
                if (input <= K && output < M) *(float2*)(product + input * M + output) = y;
            }
    arrive(), wait();
    float4* to = (float4*)(sums + (long long)(seed * SHARES + share) / CLUSTER * (K + 1) * M);
#pragma unroll 4
    for (int i = share % CLUSTER * THREADS + threadIdx.x; i < (K + 1) * M / 4; i += CLUSTER * THREADS) {
        float4 sum = {};
#pragma unroll
        for (int c = 0; c < CLUSTER; c++) {
            const float4 y = of_block((const float4*)product, share / CLUSTER * CLUSTER + c)[i];
            sum.x += y.x, sum.y += y.y, sum.z += y.z, sum.w += y.w;
        }
        to[i] = sum;
    }
    arrive(), wait();  // others read this block's memory
}
