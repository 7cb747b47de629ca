// Computes on the first GPU through libcuda.so.1, which it opens by name as CUDA programs do.
// With the argument wait it waits for a line on standard input while it holds memory of the GPU.
#include <dlfcn.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { COUNT = 1 << 20, FACTOR = 2654435761u, CAPABILITY_MAJOR = 75, CAPABILITY_MINOR = 76 };

// out[i] = FACTOR * out[i] + i. The driver compiles it: libnvidia-ptxjitcompiler.
static const char *kernel =
    ".version 6.0\n"
    ".target sm_53\n"
    ".address_size 64\n"
    ".visible .entry mix(.param .u64 out, .param .u32 factor)\n"
    "{\n"
    "  .reg .b32 %r<7>;\n"
    "  .reg .b64 %d<3>;\n"
    "  ld.param.u64 %d0, [out];\n"
    "  ld.param.u32 %r0, [factor];\n"
    "  cvta.to.global.u64 %d0, %d0;\n"
    "  mov.u32 %r1, %ctaid.x;\n"
    "  mov.u32 %r2, %ntid.x;\n"
    "  mov.u32 %r3, %tid.x;\n"
    "  mad.lo.u32 %r4, %r1, %r2, %r3;\n"
    "  mul.wide.u32 %d1, %r4, 4;\n"
    "  add.u64 %d2, %d0, %d1;\n"
    "  ld.global.u32 %r5, [%d2];\n"
    "  mad.lo.u32 %r6, %r5, %r0, %r4;\n"
    "  st.global.u32 [%d2], %r6;\n"
    "  ret;\n"
    "}\n";

static void *driver;

static void fail(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    vprintf(format, args);
    va_end(args);
    putchar('\n');
    exit(1);
}

static void *find(const char *name)
{
    void *symbol = dlsym(driver, name);
    if (!symbol)
        fail("find %s: %s", name, dlerror());
    return symbol;
}

// CALL runs a function of the driver's. Its parameters have the types of the arguments.
#define CALL(name, types, ...)                                                 \
    do {                                                                       \
        int status = ((int(*) types)find(#name))(__VA_ARGS__);                 \
        if (status)                                                            \
            fail("%s = %d; want 0", #name, status);                            \
    } while (0)

static void fill(uint32_t *numbers)
{
    uint32_t x = 1;
    for (int i = 0; i < COUNT; i++)
        numbers[i] = x = x * 1664525u + 1013904223u;
}

static void describe(int device)
{
    char name[256];
    int major, minor, cuda;
    CALL(cuDeviceGetName, (char *, int, int), name, sizeof name, device);
    CALL(cuDeviceGetAttribute, (int *, int, int), &major, CAPABILITY_MAJOR, device);
    CALL(cuDeviceGetAttribute, (int *, int, int), &minor, CAPABILITY_MINOR, device);
    CALL(cuDriverGetVersion, (int *), &cuda);
    printf("%s, %d.%d, CUDA %d.%d\n", name, major, minor, cuda / 1000, cuda % 1000 / 10);
}

static void copy_back(uint32_t *numbers, uint64_t memory)
{
    memset(numbers, 0xa5, COUNT * sizeof *numbers);
    CALL(cuMemcpyDtoH_v2, (void *, uint64_t, size_t), numbers, memory, COUNT * sizeof *numbers);
}

static void run_kernel(uint64_t memory)
{
    void *module, *function;
    uint32_t factor = FACTOR;
    void *arguments[] = {&memory, &factor};
    CALL(cuModuleLoadData, (void **, const void *), &module, kernel);
    CALL(cuModuleGetFunction, (void **, void *, const char *), &function, module, "mix");
    CALL(cuLaunchKernel, (void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **),
         function, COUNT / 256, 1, 1, 256, 1, 1, 0, NULL, arguments, NULL);
    CALL(cuCtxSynchronize, (void));
}

int main(int argc, char **argv)
{
    static uint32_t sent[COUNT], got[COUNT];
    int count;
    void *context;
    uint64_t memory;

    if (!(driver = dlopen("libcuda.so.1", RTLD_NOW)))
        fail("%s", dlerror());
    CALL(cuInit, (unsigned), 0);
    CALL(cuDeviceGetCount, (int *), &count);
    printf("%d GPU\n", count);
    describe(0);
    CALL(cuCtxCreate_v2, (void **, unsigned, int), &context, 0, 0);
    CALL(cuMemAlloc_v2, (uint64_t *, size_t), &memory, sizeof sent);

    fill(sent);
    CALL(cuMemcpyHtoD_v2, (uint64_t, const void *, size_t), memory, sent, sizeof sent);
    copy_back(got, memory);
    if (memcmp(sent, got, sizeof sent))
        fail("the numbers that came back are others");
    printf("%d numbers came back\n", COUNT);
    fflush(stdout);
    if (argc > 1 && !strcmp(argv[1], "wait"))
        getchar();

    run_kernel(memory);
    copy_back(got, memory);
    for (int i = 0; i < COUNT; i++)
        if (got[i] != sent[i] * FACTOR + (uint32_t)i)
            fail("number %d is %u; want %u", i, got[i], sent[i] * FACTOR + (uint32_t)i);
    printf("%d numbers computed\n", COUNT);
    CALL(cuMemFree_v2, (uint64_t), memory);
    CALL(cuCtxDestroy_v2, (void *), context);
    return 0;
}
