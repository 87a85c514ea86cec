/* Device memory: one memfd, mapped here and by the server.  A device address is its address in this
 * process, so copies are memcpy and mapped host memory has one address everywhere.
 *
 * The server is told every allocated range: a kernel that leaves them faults. */
#include <errno.h>
#include <inttypes.h>
#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include "api.h"
#include "driver.h"

#define HEAP_HINT ((void *)0x300000000000)
#define HEAP_DEFAULT (1ull << 30)
#define GRANULE 256u
#define HEAP_RESERVED 4096u /* address `base` stays unused */

enum kind {
  ALLOCATED,
  CREATED, /* for mappings: no address of it is the program's */
  MAPPED,  /* what was created, at an address that the program chose */
  HOST,    /* registered host memory, not ours to free */
};

struct range {
  uint64_t base, size;
  enum kind kind;
};

static int heap_fd = -1;
static uint64_t heap_base, heap_size;
static struct range *ranges; /* sorted by base; all kinds together */
static size_t range_count, range_capacity;

int memory_heap(uint64_t *base, uint64_t *size) {
  *base = heap_base;
  *size = heap_size;
  return heap_fd;
}

/* Out of the way of programs whose standard streams are closed, or that count on low numbers. */
int move_up(int fd) {
  enum { HIGH_DESCRIPTOR = 600 };
  int high = fd < 0 ? -1 : fcntl(fd, F_DUPFD_CLOEXEC, HIGH_DESCRIPTOR);
  if (high < 0 && fd >= 0) high = fcntl(fd, F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
  if (high < 0) return fd;
  close(fd);
  return high;
}

CUresult memory_open(void) {
  if (heap_fd >= 0) return CUDA_SUCCESS;
  heap_size = HEAP_DEFAULT;
  const char *wanted = getenv("EGPU_SIM_MEMORY");
  if (wanted && *wanted) {
    char *end;
    errno = 0;
    unsigned long long bytes = strtoull(wanted, &end, 0);
    if (errno || *end || bytes < 65536 || bytes > (1ull << 40)) {
      sim_say("EGPU_SIM_MEMORY=%s is not a number of bytes between 65536 and 2^40", wanted);
      return CUDA_ERROR_INVALID_VALUE;
    }
    heap_size = bytes & ~4095ull;
  }
  int fd = move_up(memfd_create("egpu-sim-heap", MFD_CLOEXEC));
  if (fd < 0) return CUDA_ERROR_OPERATING_SYSTEM;
  if (ftruncate(fd, (off_t)heap_size) < 0) {
    close(fd);
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  void *at = mmap(HEAP_HINT, heap_size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED_NOREPLACE, fd, 0);
  if (at == MAP_FAILED) at = mmap(NULL, heap_size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (at == MAP_FAILED) {
    close(fd);
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  heap_fd = fd;
  heap_base = (uint64_t)(uintptr_t)at;
  return CUDA_SUCCESS;
}

/* index of the first range with base > address */
static size_t after(uint64_t address) {
  size_t low = 0, high = range_count;
  while (low < high) {
    size_t middle = (low + high) / 2;
    if (ranges[middle].base > address)
      high = middle;
    else
      low = middle + 1;
  }
  return low;
}

static struct range *find(uint64_t address) {
  size_t at = after(address);
  if (!at) return NULL;
  struct range *range = &ranges[at - 1];
  return address - range->base < range->size ? range : NULL;
}

static CUresult insert(uint64_t base, uint64_t size, enum kind kind) {
  if (range_count == range_capacity) {
    size_t capacity = range_capacity ? 2 * range_capacity : 64;
    struct range *grown = realloc(ranges, capacity * sizeof *grown);
    if (!grown) return CUDA_ERROR_OUT_OF_MEMORY;
    ranges = grown;
    range_capacity = capacity;
  }
  size_t at = after(base);
  memmove(&ranges[at + 1], &ranges[at], (range_count - at) * sizeof *ranges);
  ranges[at] = (struct range){.base = base, .size = size, .kind = kind};
  range_count++;
  return CUDA_SUCCESS;
}

static void removed(struct range *range) {
  size_t at = (size_t)(range - ranges);
  memmove(range, range + 1, (range_count - at - 1) * sizeof *ranges);
  range_count--;
}

static uint64_t rounded(uint64_t size) { return (size + GRANULE - 1) & ~(uint64_t)(GRANULE - 1); }

/* A free place in the heap; first fit. */
static CUresult place(uint64_t size, uint64_t alignment, uint64_t *address) {
  uint64_t rest = alignment - 1, end = heap_base + heap_size;
  if (!size) return CUDA_ERROR_INVALID_VALUE;
  if (size > heap_size) return CUDA_ERROR_OUT_OF_MEMORY;
  uint64_t at = (heap_base + HEAP_RESERVED + rest) & ~rest;
  for (size_t i = after(heap_base); i < range_count && ranges[i].base < end; i++) {
    if (ranges[i].base >= at && ranges[i].base - at >= rounded(size)) break;
    at = (ranges[i].base + rounded(ranges[i].size) + rest) & ~rest;
  }
  if (at >= end || end - at < rounded(size)) return CUDA_ERROR_OUT_OF_MEMORY;
  *address = at;
  return CUDA_SUCCESS;
}

CUresult memory_allocate(uint64_t size, uint64_t *address) {
  uint64_t at;
  TRY(place(size, GRANULE, &at));
  TRY(insert(at, size, ALLOCATED));
  CUresult result = wire_range(true, at, size);
  if (result) {
    removed(find(at));
    return result;
  }
  *address = at;
  return CUDA_SUCCESS;
}

CUresult memory_free(uint64_t address) {
  struct range *range = find(address);
  if (!range || range->base != address || range->kind != ALLOCATED) return CUDA_ERROR_INVALID_VALUE;
  TRY(wire_range(false, address, range->size));
  removed(range);
  return CUDA_SUCCESS;
}

CUresult memory_create(uint64_t size, uint64_t alignment, uint64_t *address) {
  TRY(place(size, alignment, address));
  return insert(*address, size, CREATED);
}

void memory_destroy(uint64_t address) { removed(find(address)); }

CUresult memory_show(uint64_t base, uint64_t size, uint64_t created) {
  void *at = (void *)(uintptr_t)base;
  uint64_t offset = created - heap_base;
  if (mmap(at, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, heap_fd, (off_t)offset) == MAP_FAILED)
    return CUDA_ERROR_OUT_OF_MEMORY;
  CUresult result = insert(base, size, MAPPED);
  if (result) return result;
  result = wire_host(base, size, heap_fd, offset);
  if (result) removed(find(base));
  return result;
}

CUresult memory_hide(uint64_t base, uint64_t size) {
  TRY(wire_range(false, base, size));
  removed(find(base));
  void *at = (void *)(uintptr_t)base;
  bool hidden = mmap(at, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0) != MAP_FAILED;
  return hidden ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

bool memory_is_device(uint64_t address) { return find(address) != NULL; }

/* From one mapping to the next, but not from one allocation to another. */
CUresult memory_readable(uint64_t address, uint64_t size) {
  while (size) {
    struct range *range = find(address);
    if (!range) return CUDA_ERROR_INVALID_VALUE;
    uint64_t here = range->size - (address - range->base);
    if (size > here && range->kind != MAPPED) return CUDA_ERROR_INVALID_VALUE;
    if (size <= here) break;
    address += here;
    size -= here;
    range = find(address);
    if (!range || range->kind != MAPPED) return CUDA_ERROR_INVALID_VALUE;
  }
  return CUDA_SUCCESS;
}

static uint64_t used(void) {
  uint64_t total = HEAP_RESERVED;
  for (size_t i = 0; i < range_count; i++)
    if (ranges[i].kind == ALLOCATED || ranges[i].kind == CREATED) total += rounded(ranges[i].size);
  return total;
}

API CUresult cuMemAlloc_v2(CUdeviceptr *address, size_t size) {
  ENTER();
  TRY(sim_check_context());
  NEED(address);
  TRY(capture_forbid());
  uint64_t at;
  TRY(memory_allocate(size, &at));
  *address = at;
  return CUDA_SUCCESS;
}

API CUresult cuMemAllocPitch_v2(CUdeviceptr *address, size_t *pitch, size_t width, size_t height, unsigned element) {
  ENTER();
  TRY(sim_check_context());
  NEED(address && pitch && width && height && (element == 4 || element == 8 || element == 16));
  TRY(capture_forbid());
  uint64_t at;
  size_t row = (width + 511) & ~(size_t)511;
  NEED(height <= SIZE_MAX / row);
  TRY(memory_allocate(row * height, &at));
  *address = at;
  *pitch = row;
  return CUDA_SUCCESS;
}

API CUresult cuMemAllocManaged(CUdeviceptr *address, size_t size, unsigned flags) {
  NEED(flags == 1 || flags == 2);
  return cuMemAlloc_v2(address, size);
}

API CUresult cuMemFree_v2(CUdeviceptr address) {
  ENTER();
  TRY(sim_check_context());
  if (!address) return CUDA_SUCCESS;
  TRY(capture_forbid());
  return memory_free(address);
}

API CUresult cuMemGetInfo_v2(size_t *available, size_t *total) {
  ENTER();
  TRY(sim_check_context());
  NEED(available && total);
  *total = heap_size;
  *available = heap_size - used();
  return CUDA_SUCCESS;
}

API CUresult cuMemGetAddressRange_v2(CUdeviceptr *base, size_t *size, CUdeviceptr address) {
  ENTER();
  TRY(sim_check_context());
  struct range *range = find(address);
  if (!range) return CUDA_ERROR_NOT_FOUND;
  if (base) *base = range->base;
  if (size) *size = range->size;
  return CUDA_SUCCESS;
}

/* Pinned host memory is heap memory: it is mapped in both worlds already. */
API CUresult cuMemHostAlloc(void **pointer, size_t size, unsigned flags) {
  ENTER();
  TRY(sim_check_context());
  NEED(pointer && !(flags & ~7u));
  TRY(capture_forbid());
  uint64_t at;
  TRY(memory_allocate(size, &at));
  *pointer = (void *)(uintptr_t)at;
  return CUDA_SUCCESS;
}

API CUresult cuMemAllocHost_v2(void **pointer, size_t size) { return cuMemHostAlloc(pointer, size, 0); }

API CUresult cuMemFreeHost(void *pointer) {
  ENTER();
  TRY(sim_check_context());
  NEED(pointer);
  TRY(capture_forbid());
  return memory_free((uint64_t)(uintptr_t)pointer);
}

/* The mapping that holds [address, address + size), from /proc/self/maps. */
static CUresult mapping_of(uint64_t address, uint64_t size, dev_t *device, ino_t *inode, uint64_t *offset) {
  FILE *maps = fopen("/proc/self/maps", "re");
  if (!maps) return CUDA_ERROR_OPERATING_SYSTEM;
  char line[4400];
  CUresult result = CUDA_ERROR_INVALID_VALUE;
  while (fgets(line, sizeof line, maps)) {
    uint64_t start, end, at, number;
    unsigned major_number, minor_number;
    char mode[8];
    if (sscanf(line, "%" SCNx64 "-%" SCNx64 " %7s %" SCNx64 " %x:%x %" SCNu64, &start, &end, mode, &at, &major_number,
               &minor_number, &number) != 7)
      continue;
    if (address < start || address >= end) continue;
    if (size > end - address || mode[3] != 's' || !number || (at + (address - start)) % 4096) {
      result = CUDA_ERROR_NOT_SUPPORTED;
      break;
    }
    *device = makedev(major_number, minor_number);
    *inode = (ino_t)number;
    *offset = at + (address - start);
    result = CUDA_SUCCESS;
    break;
  }
  fclose(maps);
  return result;
}

/* A descriptor of the file behind a shared mapping: one the process still has open, else the link
 * in map_files, which needs privilege. */
static int descriptor_of(dev_t device, ino_t inode, uint64_t address) {
  DIR *open_files = opendir("/proc/self/fd");
  if (!open_files) return -1;
  int found = -1;
  struct dirent *entry;
  while (found < 0 && (entry = readdir(open_files))) {
    char *end;
    long fd = strtol(entry->d_name, &end, 10);
    struct stat status;
    if (*end || end == entry->d_name || fstat((int)fd, &status) < 0) continue;
    if (status.st_ino != inode || status.st_dev != device) continue;
    if ((fcntl((int)fd, F_GETFL) & O_ACCMODE) == O_RDWR) found = fcntl((int)fd, F_DUPFD_CLOEXEC, 3);
  }
  closedir(open_files);
  if (found >= 0) return found;
  DIR *files = opendir("/proc/self/map_files");
  if (!files) return -1;
  while (found < 0 && (entry = readdir(files))) {
    uint64_t start, end;
    if (sscanf(entry->d_name, "%" SCNx64 "-%" SCNx64, &start, &end) != 2) continue;
    if (address >= start && address < end) found = openat(dirfd(files), entry->d_name, O_RDWR | O_CLOEXEC);
  }
  closedir(files);
  return found;
}

API CUresult cuMemHostRegister_v2(void *pointer, size_t size, unsigned flags) {
  ENTER();
  TRY(sim_check_context());
  NEED(pointer && size && !(flags & ~15u));
  TRY(capture_forbid());
  uint64_t base = (uint64_t)(uintptr_t)pointer;
  size_t next = after(base);
  if (find(base) || (next < range_count && ranges[next].base - base < size)) return CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
  dev_t device = 0;
  ino_t inode = 0;
  uint64_t offset = 0;
  CUresult result = mapping_of(base, size, &device, &inode, &offset);
  int fd = result ? -1 : descriptor_of(device, inode, base);
  if (fd < 0) {
    if (result == CUDA_ERROR_INVALID_VALUE) return result;
    sim_say("cuMemHostRegister(%p, %zu): only page-aligned, shared file mappings (a memfd) can be "
            "registered with the simulated device; use cuMemHostAlloc for private memory",
            pointer, size);
    return CUDA_ERROR_NOT_SUPPORTED;
  }
  result = insert(base, size, HOST);
  if (!result) {
    result = wire_host(base, size, fd, offset);
    if (result) removed(find(base));
  }
  close(fd);
  return result;
}

API CUresult cuMemHostUnregister(void *pointer) {
  ENTER();
  TRY(sim_check_context());
  TRY(capture_forbid());
  struct range *range = find((uint64_t)(uintptr_t)pointer);
  if (!range || range->base != (uint64_t)(uintptr_t)pointer || range->kind != HOST) return CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
  TRY(wire_range(false, range->base, range->size));
  removed(range);
  return CUDA_SUCCESS;
}

API CUresult cuMemHostGetDevicePointer_v2(CUdeviceptr *address, void *pointer, unsigned flags) {
  ENTER();
  TRY(sim_check_context());
  NEED(address && !flags && find((uint64_t)(uintptr_t)pointer));
  *address = (uint64_t)(uintptr_t)pointer;
  return CUDA_SUCCESS;
}

API CUresult cuMemHostGetFlags(unsigned *flags, void *pointer) {
  ENTER();
  TRY(sim_check_context());
  NEED(flags && find((uint64_t)(uintptr_t)pointer));
  *flags = 2; /* device-mapped */
  return CUDA_SUCCESS;
}

/* CUpointer_attribute: 1 context, 2 memory type (1 host, 2 device), 3 device pointer, 4 host pointer,
 * 8 managed, 9 device ordinal */
API CUresult cuPointerGetAttribute(void *data, int attribute, CUdeviceptr address) {
  ENTER();
  TRY(sim_check_context());
  struct range *range = find(address);
  NEED(data && range);
  switch (attribute) {
    case 1: *(CUcontext *)data = sim_current; return CUDA_SUCCESS;
    case 2: *(unsigned *)data = range->kind == HOST ? 1 : 2; return CUDA_SUCCESS;
    case 3: *(CUdeviceptr *)data = address; return CUDA_SUCCESS;
    case 4: *(void **)data = (void *)(uintptr_t)address; return CUDA_SUCCESS;
    case 8: *(unsigned *)data = 0; return CUDA_SUCCESS;
    case 9: *(int *)data = 0; return CUDA_SUCCESS;
    default: return CUDA_ERROR_NOT_SUPPORTED;
  }
}
