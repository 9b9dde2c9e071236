/* Simulated libcuda, libcudart, libcublas and libnccl, and libamdhip64, librocblas and librccl: the functions that
 * goldnode-smoke and goldnode-canary call, implemented with the memory and the processor of the host. Each library exports
 * `goldnode_simulated`, and every device name begins with SIMULATED.
 *
 * CUDA or HIP selects the interface; DRIVER, RUNTIME, BLAS or COLLECTIVE selects the library. The variable
 * GOLDNODE_ACCELERATOR is a list of words: count=N, name=TEXT, hang=FUNCTION, crash=FUNCTION, error=FUNCTION:CODE,
 * wrong=memory|product|sum|relu|copy, free=MIB, clock=N: the time between two events is N times as long as here, for tests
 * that need the seconds of the device and not its work; wait=MILLISECONDS: cuCtxSynchronize takes that long, without the
 * processor, as if a device worked meanwhile.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

int goldnode_simulated = 1;

static const char *word(const char *key, const char *otherwise) {
    static char found[256];
    const char *all = getenv("GOLDNODE_ACCELERATOR");
    size_t length = strlen(key);
    for (; all && *all; all += strcspn(all, ","), all += *all == ',')
        if (!strncmp(all, key, length) && all[length] == '=') {
            size_t size = strcspn(all + length + 1, ",");
            snprintf(found, sizeof found, "%.*s", (int)size, all + length + 1);
            return found;
        }
    return otherwise;
}
static int is(const char *key, const char *value) { return !strcmp(word(key, ""), value); }
static int fault(const char *function) {
    if (is("hang", function)) for (;;) sleep(1);
    if (is("crash", function)) *(volatile int *)8 = 1;
    const char *error = word("error", "");
    size_t length = strlen(function);
    if (!strncmp(error, function, length) && error[length] == ':') return atoi(error + length + 1);
    return 0;
}
#define FAULT do { int rc_ = fault(__func__); if (rc_) return rc_; } while (0)
static int count(void) { return atoi(word("count", "1")); }

#ifdef DRIVER
typedef struct { const char *name; } kernel;
static kernel known[] = {{"goldnode_fill"}, {"goldnode_verify"}, {"goldnode_relu"}, {"goldnode_gemm"}, {"goldnode_compiled"},
                         {"goldnode_nothing"}, {"goldnode_copy"}, {"goldnode_triad"}};
static size_t blocks; /* of the running launch: a block of goldnode_copy and goldnode_triad moves 16 KiB */

static uint32_t pattern(uint64_t i, uint32_t seed) { return (uint32_t)i * 2654435761u ^ (uint32_t)(i >> 32) ^ seed; }

static void run(const char *name, void **p) {
    if (!strcmp(name, "goldnode_fill")) {
        uint32_t *m = *(uint32_t **)p[0], seed = *(uint32_t *)p[2];
        uint64_t n = *(uint64_t *)p[1];
        for (uint64_t i = 0; i < n; i++) m[i] = pattern(i, seed);
        if (is("wrong", "memory")) m[n / 2] ^= 1;
    } else if (!strcmp(name, "goldnode_verify")) {
        uint32_t *m = *(uint32_t **)p[0], seed = *(uint32_t *)p[2], *wrong = *(uint32_t **)p[3];
        uint64_t n = *(uint64_t *)p[1];
        for (uint64_t i = 0; i < n; i++) *wrong += m[i] != pattern(i, seed);
    } else if (!strcmp(name, "goldnode_relu")) {
        float *m = *(float **)p[0];
        uint64_t n = *(uint64_t *)p[1];
        if (!is("wrong", "relu")) for (uint64_t i = 0; i < n; i++) m[i] = m[i] > 0 ? m[i] : 0;
    } else if (!strcmp(name, "goldnode_gemm")) {
        float *a = *(float **)p[0], *b = *(float **)p[1], *c = *(float **)p[2];
        uint64_t rows = *(uint32_t *)p[3], columns = *(uint32_t *)p[4], inner = *(uint32_t *)p[5];
        for (uint64_t j = 0; j < columns; j++)
            for (uint64_t i = 0; i < rows; i++) {
                float sum = 0;
                for (uint64_t k = 0; k < inner; k++) sum += a[i + k * rows] * b[k + j * inner];
                c[i + j * rows] = sum;
            }
    } else if (!strcmp(name, "goldnode_compiled")) {
        float *x = *(float **)p[0];
        int n = *(int *)p[1];
        for (int i = 0; i < n; i++) x[i] *= 2;
    } else if (!strcmp(name, "goldnode_copy")) {
        memcpy(*(void **)p[0], *(void **)p[1], blocks * 16384);
        if (is("wrong", "copy")) **(char **)p[0] ^= 1;
    } else if (!strcmp(name, "goldnode_triad")) {
        float *to = *(float **)p[0], *left = *(float **)p[1], *right = *(float **)p[2], factor = *(float *)p[3];
        for (size_t i = 0; i < blocks * 4096; i++) to[i] = left[i] + factor * right[i];
    }
}
static void name_of(char *out, int size) { snprintf(out, size, "SIMULATED %s", word("name", "board")); }
static void address_of(char *out, int size, int device) { snprintf(out, size, "0000:%02x:00.0", 0x18 + device); }
static uint64_t free_bytes(void) { return (uint64_t)atoi(word("free", "64")) << 20; }
static void *function_of(const char *name) {
    for (unsigned i = 0; i < sizeof known / sizeof *known; i++) if (!strcmp(known[i].name, name)) return &known[i];
    return NULL;
}
#endif

#if defined CUDA && defined DRIVER
int cuInit(unsigned flags) { FAULT; (void)flags; return count() ? 0 : 100; }
int cuGetErrorName(int code, const char **out) { *out = code == 100 ? "CUDA_ERROR_NO_DEVICE" : code == 2 ? "CUDA_ERROR_OUT_OF_MEMORY" : "CUDA_ERROR_UNKNOWN"; return 0; }
int cuDriverGetVersion(int *out) { *out = 12040; return 0; }
int cuDeviceGetCount(int *out) { FAULT; *out = count(); return 0; }
int cuDeviceGet(int *out, int index) { *out = index; return 0; }
int cuDeviceGetName(char *out, int size, int device) { (void)device; name_of(out, size); return 0; }
int cuDeviceTotalMem_v2(size_t *out, int device) { (void)device; *out = free_bytes(); return 0; }
int cuDeviceGetPCIBusId(char *out, int size, int device) { address_of(out, size, device); return 0; }
int cuDeviceGetAttribute(int *out, int what, int device) { (void)device; *out = what == 75 ? 9 : what == 76 ? 0 : 2; return 0; }
int cuDevicePrimaryCtxRetain(void **out, int device) { *out = (void *)(uintptr_t)(device + 1); return 0; }
int cuCtxSetCurrent(void *context) { (void)context; return 0; }
int cuCtxSynchronize(void) { FAULT; usleep(1000 * atoi(word("wait", "0"))); return 0; }
int cuMemGetInfo_v2(size_t *free_, size_t *total) { *free_ = *total = free_bytes(); return 0; }
int cuMemAlloc_v2(uint64_t *out, size_t size) { FAULT; *out = (uint64_t)(uintptr_t)malloc(size); return *out ? 0 : 2; }
int cuMemFree_v2(uint64_t memory) { free((void *)(uintptr_t)memory); return 0; }
int cuMemcpyHtoD_v2(uint64_t to, const void *from, size_t size) { memcpy((void *)(uintptr_t)to, from, size); return 0; }
int cuMemcpyDtoH_v2(void *to, uint64_t from, size_t size) { memcpy(to, (void *)(uintptr_t)from, size); return 0; }
int cuModuleLoadData(void **out, const void *image) { FAULT; *out = (void *)image; return strstr(image, ".target") ? 0 : 218; }
int cuModuleGetFunction(void **out, void *module, const char *name) { (void)module; *out = function_of(name); return *out ? 0 : 500; }
int cuLaunchKernel(void *f, unsigned a, unsigned b, unsigned c, unsigned d, unsigned e, unsigned g, unsigned s, void *q, void **p, void **x) {
    FAULT;
    (void)b; (void)c; (void)d; (void)e; (void)g; (void)s; (void)q; (void)x;
    blocks = a;
    run(((kernel *)f)->name, p);
    return 0;
}
int cuMemsetD32_v2(uint64_t to, uint32_t value, size_t n) { for (size_t i = 0; i < n; i++) ((uint32_t *)(uintptr_t)to)[i] = value; return 0; }
int cuMemsetD8_v2(uint64_t to, unsigned char value, size_t n) { memset((void *)(uintptr_t)to, value, n); return 0; }
int cuMemcpyDtoDAsync_v2(uint64_t to, uint64_t from, size_t size, void *q) { FAULT; (void)q; memcpy((void *)(uintptr_t)to, (void *)(uintptr_t)from, size); return 0; }
int cuMemcpyHtoDAsync_v2(uint64_t to, const void *from, size_t size, void *q) { FAULT; (void)q; memcpy((void *)(uintptr_t)to, from, size); return 0; }
int cuMemcpyDtoHAsync_v2(void *to, uint64_t from, size_t size, void *q) { FAULT; (void)q; memcpy(to, (void *)(uintptr_t)from, size); return 0; }
int cuMemHostAlloc(void **out, size_t size, unsigned flags) { FAULT; (void)flags; *out = malloc(size); return *out ? 0 : 2; }
int cuMemFreeHost(void *memory) { free(memory); return 0; }
int cuEventCreate(void **out, unsigned flags) { (void)flags; *out = calloc(1, sizeof(struct timespec)); return *out ? 0 : 2; }
int cuEventRecord(void *event, void *q) { (void)q; clock_gettime(CLOCK_MONOTONIC, event); return 0; }
int cuEventSynchronize(void *event) { FAULT; (void)event; return 0; }
int cuEventElapsedTime(float *out, const void *start, const void *end) {
    const struct timespec *a = start, *b = end;
    *out = (float)((b->tv_sec - a->tv_sec) * 1e3 + (b->tv_nsec - a->tv_nsec) / 1e6) * atoi(word("clock", "1"));
    return 0;
}
int cuEventDestroy_v2(void *event) { free(event); return 0; }
#endif
#if defined CUDA && defined RUNTIME
int cudaRuntimeGetVersion(int *out) { FAULT; *out = 12040; return 0; }
int cudaGetDeviceCount(int *out) { FAULT; *out = count(); return count() ? 0 : 100; }
#endif
#if defined HIP && defined DRIVER
int hipInit(unsigned flags) { FAULT; (void)flags; return count() ? 0 : 100; }
int hipRuntimeGetVersion(int *out) { *out = 50221153; return 0; }
const char *hipGetErrorName(int code) { return code == 100 ? "hipErrorNoDevice" : "hipErrorUnknown"; }
int hipGetDeviceCount(int *out) { FAULT; *out = count(); return count() ? 0 : 100; }
int hipDeviceGetName(char *out, int size, int device) { (void)device; name_of(out, size); return 0; }
int hipDeviceTotalMem(size_t *out, int device) { (void)device; *out = free_bytes(); return 0; }
int hipDeviceGetPCIBusId(char *out, int size, int device) { address_of(out, size, device); return 0; }
int hipSetDevice(int device) { (void)device; return 0; }
int hipDeviceSynchronize(void) { FAULT; return 0; }
int hipMemGetInfo(size_t *free_, size_t *total) { *free_ = *total = free_bytes(); return 0; }
int hipMalloc(void **out, size_t size) { FAULT; *out = malloc(size); return *out ? 0 : 2; }
int hipFree(void *memory) { free(memory); return 0; }
int hipMemcpy(void *to, const void *from, size_t size, int kind) { (void)kind; memcpy(to, from, size); return 0; }
int hiprtcCreateProgram(void **out, const char *source, const char *name, int n, void *h, void *i) { (void)name; (void)n; (void)h; (void)i; *out = strdup(source); return 0; }
int hiprtcCompileProgram(void *program, int n, void *options) { FAULT; (void)program; (void)n; (void)options; return 0; }
int hiprtcGetCodeSize(void *program, size_t *out) { *out = strlen(program) + 1; return 0; }
int hiprtcGetCode(void *program, char *out) { strcpy(out, program); return 0; }
int hipModuleLoadData(void **out, const void *image) { *out = (void *)image; return strstr(image, "goldnode_fill") ? 0 : 200; }
int hipModuleGetFunction(void **out, void *module, const char *name) { (void)module; *out = function_of(name); return *out ? 0 : 500; }
int hipModuleLaunchKernel(void *f, unsigned a, unsigned b, unsigned c, unsigned d, unsigned e, unsigned g, unsigned s, void *q, void **p, void **x) {
    FAULT;
    (void)a; (void)b; (void)c; (void)d; (void)e; (void)g; (void)s; (void)q; (void)x;
    run(((kernel *)f)->name, p);
    return 0;
}
#endif

#ifdef BLAS
static float read_(const void *m, int half, size_t i) {
    if (half == 14) { union { uint32_t bits; float value; } brain = {(uint32_t)((const uint16_t *)m)[i] << 16}; return brain.value; }
    return half ? (float)((const _Float16 *)m)[i] : ((const float *)m)[i];
}
static void product(size_t n, const void *a, const void *b, float *c, int half) {
    for (size_t j = 0; j < n; j++)
        for (size_t i = 0; i < n; i++) {
            float sum = 0;
            for (size_t k = 0; k < n; k++) sum += read_(a, half, i + k * n) * read_(b, half, k + j * n);
            c[i + j * n] = sum;
        }
    if (is("wrong", "product")) c[n + 3] += 1;
}
#ifdef CUDA
int cublasGetProperty(int kind, int *out) { *out = (int[]){12, 4, 5}[kind]; return 0; }
int cublasCreate_v2(void **out) { FAULT; *out = (void *)1; return 0; }
int cublasGemmEx(void *h, int ta, int tb, int m, int n, int k, const void *al, const void *a, int at, int la, const void *b, int bt, int lb,
                 const void *be, void *c, int ct, int lc, int compute, int algorithm) {
    FAULT;
    (void)h; (void)al; (void)be; (void)la; (void)lb; (void)lc; (void)algorithm;
    if (ta || tb || m != n || k != n || at != bt || ct || (compute != 68 && compute != 77)) return 7;
    product(n, a, b, c, at == 14 ? 14 : at == 2);
    return 0;
}
#else
int rocblas_get_version_string(char *out, size_t size) { snprintf(out, size, "2.45.0.simulated"); return 0; }
int rocblas_create_handle(void **out) { FAULT; *out = (void *)1; return 0; }
int rocblas_gemm_ex(void *h, int ta, int tb, int m, int n, int k, const void *al, const void *a, int at, int la, const void *b, int bt, int lb,
                    const void *be, const void *c, int ct, int lc, void *d, int dt, int ld, int compute, int algorithm, int solution, unsigned flags) {
    FAULT;
    (void)h; (void)al; (void)be; (void)la; (void)lb; (void)lc; (void)ld; (void)c; (void)algorithm; (void)solution; (void)flags;
    if (ta != 111 || tb != 111 || m != n || k != n || at != bt || ct != 151 || dt != 151 || compute != 151) return 11;
    product(n, a, b, d, at == 150);
    return 0;
}
#endif
#endif

#ifdef COLLECTIVE
static int ranks, called;
static const float *sends[16];
static float *receives[16];
static size_t sizes[16];
int ncclGetVersion(int *out) { *out = 22105; return 0; }
const char *ncclGetErrorString(int code) { return code == 2 ? "unhandled system error" : "internal error"; }
int ncclCommInitAll(void **comms, int n, const int *devices) {
    FAULT;
    (void)devices;
    ranks = n;
    for (int i = 0; i < n; i++) comms[i] = (void *)(uintptr_t)(i + 1);
    return 0;
}
int ncclCommDestroy(void *comm) { (void)comm; return 0; }
int ncclGroupStart(void) { called = 0; return 0; }
int ncclAllReduce(const void *send, void *receive, size_t n, int type, int op, void *comm, void *stream) {
    FAULT;
    (void)stream;
    if (type != 7 || op) return 4;
    int rank = (int)(uintptr_t)comm - 1;
    sends[rank] = send; receives[rank] = receive; sizes[rank] = n; called++;
    return 0;
}
int ncclGroupEnd(void) {
    if (called != ranks) return 3;
    for (size_t i = 0; i < sizes[0]; i++) {
        float sum = 0;
        for (int r = 0; r < ranks; r++) sum += sends[r][i];
        for (int r = 0; r < ranks; r++) receives[r][i] = sum;
    }
    if (is("wrong", "sum")) receives[ranks - 1][sizes[0] - 1] += 1;
    return 0;
}
#endif
