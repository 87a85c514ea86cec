/* Images: how long they are, from their headers only, and where the session can read them.
 *
 * An image inside a file that the loader mapped is handed over by reference; anything else may be
 * freed by the program right after the load and is copied then. */
#include <elf.h>
#include <errno.h>
#include <limits.h>
#include <link.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "agent.h"

enum {
    FATBIN_MAGIC = (int)0xba55ed50,
    WRAPPER_MAGIC = 0x466243b1,
    FATBIN_HEADER = 16,
};
static const uint64_t SIZE_LIMIT = 1ull << 34; /* a larger claim is not an image's */

static uint64_t elf_size(const unsigned char *image)
{
    Elf64_Ehdr head;
    memcpy(&head, image, sizeof head);
    if (head.e_ident[EI_CLASS] != ELFCLASS64)
        return 0;
    uint64_t end = head.e_ehsize;
    uint64_t sections = head.e_shoff + (uint64_t)head.e_shentsize * head.e_shnum;
    uint64_t programs = head.e_phoff + (uint64_t)head.e_phentsize * head.e_phnum;
    if (head.e_shoff >= SIZE_LIMIT || head.e_phoff >= SIZE_LIMIT)
        return 0;
    if (head.e_shnum != 0 && sections > end)
        end = sections;
    if (head.e_phnum != 0 && programs > end)
        end = programs;
    for (unsigned i = 0; i < head.e_shnum && head.e_shentsize >= sizeof(Elf64_Shdr); i++) {
        Elf64_Shdr section;
        memcpy(&section, image + head.e_shoff + (uint64_t)i * head.e_shentsize, sizeof section);
        if (section.sh_type != SHT_NOBITS && section.sh_offset < SIZE_LIMIT &&
            section.sh_size < SIZE_LIMIT && section.sh_offset + section.sh_size > end)
            end = section.sh_offset + section.sh_size;
    }
    return end;
}

/* Bytes of an image that the driver has accepted, 0 if it is of no known kind.  *start is the image
 * itself when a wrapper was given.  One fatbin only: what follows one in .nv_fatbin belongs to other
 * modules of the program. */
uint64_t egpu_image_size(const void *image, const void **start)
{
    const unsigned char *bytes = image;
    uint32_t magic = 0;
    uint64_t payload;
    *start = image;
    memcpy(&magic, bytes, bytes[0] == 0 ? 1 : sizeof magic);
    if (bytes[0] == 0)
        return 0;
    if (magic == WRAPPER_MAGIC) {
        memcpy(&bytes, bytes + 8, sizeof bytes);
        if (bytes == NULL)
            return 0;
        *start = bytes;
        memcpy(&magic, bytes, sizeof magic);
    }
    if (magic == (uint32_t)FATBIN_MAGIC) {
        uint16_t header;
        memcpy(&header, bytes + 6, sizeof header);
        memcpy(&payload, bytes + 8, sizeof payload);
        return header >= FATBIN_HEADER && payload < SIZE_LIMIT ? header + payload : 0;
    }
    if (memcmp(bytes, ELFMAG, SELFMAG) == 0)
        return elf_size(bytes);
    return strlen((const char *)bytes) + 1; /* PTX text, NUL included */
}

static bool holds(const ElfW(Phdr) *part, uintptr_t base, uintptr_t start, uint64_t size)
{
    uintptr_t low = base + part->p_vaddr;
    return part->p_type == PT_LOAD && start >= low && size <= part->p_filesz &&
           start - low <= part->p_filesz - size;
}

struct search {
    uintptr_t start;
    uint64_t size, offset;
    char path[PATH_MAX];
    bool found;
};

static int look(struct dl_phdr_info *info, size_t size, void *data)
{
    struct search *search = data;
    (void)size;
    for (int i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) *part = &info->dlpi_phdr[i];
        if (!holds(part, info->dlpi_addr, search->start, search->size))
            continue;
        if (part->p_flags & PF_W)
            return 1; /* may have been changed since it was mapped: copy it */
        search->offset = part->p_offset + (search->start - info->dlpi_addr - part->p_vaddr);
        const char *name = info->dlpi_name;
        search->found =
            realpath(name != NULL && *name != '\0' ? name : "/proc/self/exe", search->path) != NULL;
        return 1;
    }
    return 0;
}

struct file_mark egpu_file_mark(const struct stat *status)
{
    return (struct file_mark){status->st_dev, status->st_ino, status->st_size, status->st_ctim};
}

/* Whether the file at the module's path is the one that was there when it was loaded: a program may
 * be built anew while it runs, and a twin of another kernel would do what that one does. */
bool egpu_image_unchanged(const struct module *module)
{
    struct stat status;
    if (stat(module->path, &status) != 0)
        return false;
    const struct file_mark now = egpu_file_mark(&status), *then = &module->mark;
    return now.device == then->device && now.number == then->number && now.size == then->size &&
           now.changed.tv_sec == then->changed.tv_sec &&
           now.changed.tv_nsec == then->changed.tv_nsec;
}

static bool earlier(const struct timespec *one, const struct timespec *other)
{
    return one->tv_sec < other->tv_sec ||
           (one->tv_sec == other->tv_sec && one->tv_nsec < other->tv_nsec);
}

/* The path must still be the file whose bytes are mapped: compare the first of them with memory; the
 * rest may differ in a file that came there since the process began. */
static bool verify(const struct search *search, struct file_mark *mark)
{
    char there[64];
    uint64_t part = search->size < sizeof there ? search->size : sizeof there;
    struct stat status;
    FILE *file = fopen(search->path, "rbe");
    bool same = file != NULL && fstat(fileno(file), &status) == 0 &&
                (uint64_t)status.st_size >= search->offset + search->size &&
                fseeko(file, (off_t)search->offset, SEEK_SET) == 0 &&
                fread(there, 1, part, file) == part &&
                memcmp(there, (const void *)search->start, part) == 0 &&
                earlier(&status.st_ctim, &egpu.loaded);
    if (same)
        *mark = egpu_file_mark(&status);
    if (file != NULL)
        fclose(file);
    return same;
}

static void send_copy(struct module *module, const void *start, uint64_t size)
{
    int file = egpu_memory_file("egpu-image", size);
    if (file < 0) {
        egpu_say("cannot copy an image of %llu bytes (%s); its kernels run unprobed",
                 (unsigned long long)size, strerror(errno));
        return;
    }
    uint64_t done = 0;
    while (done < size) {
        ssize_t wrote = pwrite(file, (const char *)start + done, size - done, (off_t)done);
        if (wrote <= 0)
            break;
        done += (uint64_t)wrote;
    }
    struct egpu_image message = {module->image, size};
    if (done == size &&
        egpu_wire_send(EGPU_IMAGE, 0, &message, sizeof message, NULL, NULL, 0, file) == 0)
        module->source = EGPU_SOURCE_SENT;
    close(file);
}

/* Whether an image is a part of a file; what is known of that goes into its module. */
static bool find(struct module *module, const void *start, uint64_t size)
{
    struct search *search = calloc(1, sizeof *search);
    if (search == NULL)
        return false;
    search->start = (uintptr_t)start;
    search->size = size;
    dl_iterate_phdr(look, search);
    if (search->found && verify(search, &module->mark) &&
        (module->path = strdup(search->path)) != NULL) {
        module->source = EGPU_SOURCE_FILE;
        module->offset = search->offset;
        module->size = size;
    }
    free(search);
    return module->source == EGPU_SOURCE_FILE;
}

/* Fills in where the session finds the image of a module that was just loaded. */
void egpu_image_reference(struct module *module, const void *image)
{
    const void *start;
    uint64_t size = image != NULL ? egpu_image_size(image, &start) : 0;
    if (size == 0 || size >= SIZE_LIMIT || find(module, start, size))
        return;
    module->size = size;
    send_copy(module, start, size);
}

struct piece {
    uintptr_t start;
    uint64_t size;
};

static int mapped(struct dl_phdr_info *info, size_t size, void *data)
{
    const struct piece *piece = data;
    (void)size;
    for (int i = 0; i < info->dlpi_phnum; i++)
        if (holds(&info->dlpi_phdr[i], info->dlpi_addr, piece->start, piece->size))
            return 1;
    return 0;
}

/* The magic of an image, 0 if it and a header are not in what was mapped from a program's file. */
static uint32_t magic_at(const void *image)
{
    struct piece piece = {(uintptr_t)image, FATBIN_HEADER};
    uint32_t magic = 0;
    if (dl_iterate_phdr(mapped, &piece) != 0)
        memcpy(&magic, image, sizeof magic);
    return magic;
}

/* The same of an image that the driver has not seen, if it is a fatbin in a file: it may be
 * anything, so nothing is read but headers, and those where files are mapped. */
bool egpu_image_in_file(struct module *module, const void *image)
{
    uint32_t magic = magic_at(image);
    const void *start = image;
    if (magic == WRAPPER_MAGIC) {
        memcpy(&start, (const char *)image + 8, sizeof start);
        magic = magic_at(start);
    }
    if (magic != (uint32_t)FATBIN_MAGIC)
        return false;
    uint64_t size = egpu_image_size(start, &start);
    return size != 0 && find(module, start, size);
}
