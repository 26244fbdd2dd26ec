/* A library that answers as libnvidia-ml.so.1 does for one card, for the real pynvml to load: structs and versions are NVML's own.
   What an older driver lacks (version 3 of the lists of processes, among others) is not here either. */
#include <string.h>

typedef unsigned int u32;
typedef unsigned long long u64;
typedef void *device;
struct memory { u64 total, free, used; };
struct memory_v2 { u32 version; u64 total, reserved, free, used; };
struct pci { char legacy[16]; u32 domain, bus, device, id, subsystem; char bus_id[32]; };
struct process_v2 { u32 pid; u64 used; u32 gpu_instance, compute_instance; };
enum { OK = 0, INVALID_ARGUMENT = 2, INSUFFICIENT_SIZE = 7, VERSION_MISMATCH = 25 };
#define MIB 20
#define NUMBER(name, value) int name(device d, u32 *n) { (void)d; *n = value; return OK; }

int nvmlInitWithFlags(u32 flags) { (void)flags; return OK; }
int nvmlShutdown(void) { return OK; }
const char *nvmlErrorString(int code) { (void)code; return "an error"; }
int nvmlSystemGetDriverVersion(char *text, u32 size) { strncpy(text, "470.256.02", size); return OK; }
int nvmlSystemGetCudaDriverVersion_v2(int *version) { *version = 11040; return OK; }
int nvmlDeviceGetCount_v2(u32 *count) { *count = 1; return OK; }
int nvmlDeviceGetHandleByIndex_v2(u32 index, device *d) { *d = (device)0x10; return index ? INVALID_ARGUMENT : OK; }
int nvmlDeviceGetName(device d, char *text, u32 size) { (void)d; strncpy(text, "NVIDIA A10G", size); return OK; }
int nvmlDeviceGetUUID(device d, char *text, u32 size) { (void)d; strncpy(text, "GPU-4f2c7d10", size); return OK; }

int nvmlDeviceGetMemoryInfo(device d, struct memory *m) {
    (void)d;
    m->total = 23028ull << MIB; m->free = 22000ull << MIB; m->used = 1028ull << MIB;
    return OK;
}

int nvmlDeviceGetMemoryInfo_v2(device d, struct memory_v2 *m) {
    (void)d;
    if (m->version != (sizeof *m | 2 << 24)) return VERSION_MISMATCH;
    m->total = 23028ull << MIB; m->reserved = 450ull << MIB; m->free = 22000ull << MIB; m->used = 578ull << MIB;
    return OK;
}

int nvmlDeviceGetPciInfo_v3(device d, struct pci *p) {
    (void)d;
    memset(p, 0, sizeof *p);
    strcpy(p->bus_id, "00000000:CA:00.0");
    return OK;
}

int nvmlDeviceGetMemoryAffinity(device d, u32 words, unsigned long *set, u32 scope) {
    (void)d; (void)scope;
    memset(set, 0, words * sizeof *set);
    set[0] = 2;
    return OK;
}

int nvmlDeviceGetCudaComputeCapability(device d, int *major, int *minor) { (void)d; *major = 8; *minor = 6; return OK; }
NUMBER(nvmlDeviceGetComputeMode, 3)
NUMBER(nvmlDeviceGetPersistenceMode, 1)
NUMBER(nvmlDeviceGetPerformanceState, 8)
NUMBER(nvmlDeviceGetCurrPcieLinkGeneration, 1)
NUMBER(nvmlDeviceGetCurrPcieLinkWidth, 8)
NUMBER(nvmlDeviceGetMaxPcieLinkGeneration, 4)
NUMBER(nvmlDeviceGetMaxPcieLinkWidth, 16)

int nvmlDeviceGetComputeRunningProcesses_v2(device d, u32 *count, struct process_v2 *list) {
    (void)d;
    u32 room = *count;
    *count = 2;
    if (!list || room < 2) return INSUFFICIENT_SIZE;
    memset(list, 0, 2 * sizeof *list);
    list[0].pid = 77; list[0].used = 5120ull << MIB;
    list[1].pid = 78; list[1].used = ~0ull; /* not known, as for a process in another container */
    return OK;
}
