/* bpf(2). */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <unistd.h>

#include "loader.h"

/* Linux uapi, what older headers lack. */
enum { PSEUDO_MAP_IDX = 5, PSEUDO_MAP_IDX_VALUE = 6 };

static const void *pointer(uint64_t value)
{
    return (const void *)(uintptr_t)value;
}

static void *place(uint64_t value)
{
    return (void *)(uintptr_t)value;
}

static struct object *object_as(uint32_t fd, enum object_kind kind)
{
    struct object *object = object_of((int)fd);
    return object != NULL && object->kind == kind ? object : NULL;
}

/* One request about a map: key and value may be NULL. */
static int about(const struct object *map, enum egpu_loader_op op, uint64_t a, const void *key,
                 const void *value, struct answer *answer)
{
    const void *parts[2];
    size_t sizes[2];
    int count = 0;
    if (key != NULL) {
        parts[count] = key;
        sizes[count++] = map->key_size;
    }
    if (value != NULL) {
        parts[count] = value;
        sizes[count++] = map->user_size;
    }
    struct egpu_loader_request request = {.op = (uint16_t)op, .object = map->number, .a = a};
    return ask(&request, parts, sizes, count, answer);
}

/* Copies an answer of exactly `size` bytes. */
static int take(struct answer *answer, int error, void *to, size_t size)
{
    if (error == 0 && answer->size != size)
        error = -EIO;
    if (error == 0 && size > 0)
        memcpy(to, answer->bytes, size);
    free(answer->bytes);
    return error;
}

/* Bytes from one value to the next in the memory of an array. */
static size_t stride(const struct object *map)
{
    return ((size_t)map->value_size + 7) & ~(size_t)7;
}

/* What is mapped shows what was written through the descriptor, not what the GPU writes. */
static void show(int fd, const struct object *map, const void *key, const void *value)
{
    uint32_t index;
    if ((map->flags & BPF_F_MMAPABLE) == 0 || map->key_size != sizeof index)
        return;
    memcpy(&index, key, sizeof index);
    if (pwrite(fd, value, map->value_size, (off_t)(index * stride(map))) < 0)
        say("map %s cannot be shown: %s", map->name, strerror(errno));
}

static long map_create(const union bpf_attr *attr)
{
    struct object map = {.kind = OBJECT_MAP,
                         .type = attr->map_type,
                         .key_size = attr->key_size,
                         .value_size = attr->value_size,
                         .max_entries = attr->max_entries,
                         .flags = attr->map_flags};
    struct egpu_loader_map row = {attr->map_type,    attr->key_size,  attr->value_size,
                                  attr->max_entries, attr->map_flags, 0};
    memcpy(map.name, attr->map_name, sizeof map.name);
    map.name[sizeof map.name - 1] = '\0';
    const void *parts[] = {&row, map.name};
    const size_t sizes[] = {sizeof row, sizeof map.name};
    struct egpu_loader_request request = {.op = EGPU_OP_MAP_CREATE};
    struct answer answer;
    int error = ask(&request, parts, sizes, 2, &answer);
    map.number = (uint32_t)answer.value;
    error = take(&answer, error, &map.user_size, sizeof map.user_size);
    if (error != 0)
        return error;
    int fd = object_create(&map);
    if (fd >= 0 && (map.flags & BPF_F_MMAPABLE) != 0 &&
        ftruncate(fd, (off_t)(map.max_entries * stride(&map))) != 0)
        say("map %s cannot be mapped: %s", map.name, strerror(errno));
    return fd < 0 ? -errno : fd;
}

/* Descriptors in the instructions become the session's numbers. */
static int name_maps(struct bpf_insn *code, uint32_t count, const int *descriptors)
{
    for (uint32_t i = 0; i + 1 < count; i++) {
        struct bpf_insn *insn = &code[i];
        if (insn->code != (BPF_LD | BPF_IMM | BPF_DW))
            continue;
        i++; /* the second half is no instruction */
        bool indexed = insn->src_reg == PSEUDO_MAP_IDX || insn->src_reg == PSEUDO_MAP_IDX_VALUE;
        if (!indexed && insn->src_reg != BPF_PSEUDO_MAP_FD && insn->src_reg != BPF_PSEUDO_MAP_VALUE)
            continue;
        if (indexed && (descriptors == NULL || insn->imm < 0))
            return -EINVAL;
        int fd = indexed ? descriptors[insn->imm] : insn->imm;
        const struct object *map = object_as((uint32_t)fd, OBJECT_MAP);
        if (map == NULL)
            return -EBADF;
        bool value = insn->src_reg == BPF_PSEUDO_MAP_VALUE || insn->src_reg == PSEUDO_MAP_IDX_VALUE;
        insn->src_reg = value ? BPF_PSEUDO_MAP_VALUE : BPF_PSEUDO_MAP_FD;
        insn->imm = (int)map->number;
    }
    return 0;
}

static void give_log(const union bpf_attr *attr, const struct answer *answer)
{
    char *log = place(attr->log_buf);
    if (log == NULL || attr->log_size == 0 || answer->size == 0)
        return;
    size_t size = answer->size < attr->log_size ? answer->size : attr->log_size - 1;
    memcpy(log, answer->bytes, size);
    log[size] = '\0';
}

static long program_load(const union bpf_attr *attr)
{
    struct object program = {.kind = OBJECT_PROGRAM, .type = attr->prog_type};
    memcpy(program.name, attr->prog_name, sizeof program.name);
    program.name[sizeof program.name - 1] = '\0';
    if (attr->insn_cnt == 0 || attr->insn_cnt > 1u << 20)
        return -E2BIG;
    size_t size = attr->insn_cnt * sizeof(struct bpf_insn);
    struct bpf_insn *code = malloc(size);
    if (code == NULL)
        return -ENOMEM;
    memcpy(code, pointer(attr->insns), size);
    struct answer answer = {0};
    int error = name_maps(code, attr->insn_cnt, pointer(attr->fd_array));
    if (error == 0) {
        char license[EGPU_LOADER_LICENSE_SIZE] = {0};
        if (attr->license != 0)
            strncpy(license, pointer(attr->license), sizeof license - 1);
        const void *parts[] = {program.name, license, code};
        const size_t sizes[] = {sizeof program.name, sizeof license, size};
        struct egpu_loader_request request = {.op = EGPU_OP_PROG_LOAD, .a = attr->prog_type};
        error = ask(&request, parts, sizes, 3, &answer);
        program.number = (uint32_t)answer.value;
        give_log(attr, &answer);
        if (error != 0 && answer.size > 0 && attr->log_buf == 0 && program.number != 0)
            say("%.*s", (int)answer.size, (const char *)answer.bytes);
    }
    free(answer.bytes);
    free(code);
    if (error != 0)
        return error;
    int fd = object_create(&program);
    return fd < 0 ? -errno : fd;
}

static long element(int command, const union bpf_attr *attr)
{
    struct object *map = object_as(attr->map_fd, OBJECT_MAP);
    struct answer answer;
    if (map == NULL)
        return -EBADF;
    const void *key = pointer(attr->key);
    void *value = place(attr->value);
    int error;
    switch (command) {
    case BPF_MAP_LOOKUP_ELEM:
        if (attr->flags != 0) /* BPF_F_LOCK: no map has a lock */
            return -EINVAL;
        return take(&answer, about(map, EGPU_OP_LOOKUP, 0, key, NULL, &answer), value,
                    map->user_size);
    case BPF_MAP_LOOKUP_AND_DELETE_ELEM:
        return take(&answer, about(map, EGPU_OP_TAKE, 0, key, NULL, &answer), value,
                    map->user_size);
    case BPF_MAP_UPDATE_ELEM:
        if (map->type == BPF_MAP_TYPE_PERF_EVENT_ARRAY) {
            struct object *buffer = object_as(*(const uint32_t *)value, OBJECT_PERF);
            return buffer == NULL ? -EBADF : perf_attach(map, buffer);
        }
        error = take(&answer, about(map, EGPU_OP_UPDATE, attr->flags, key, value, &answer), NULL, 0);
        if (error == 0)
            show((int)attr->map_fd, map, key, value);
        return error;
    case BPF_MAP_DELETE_ELEM:
        if (map->type == BPF_MAP_TYPE_PERF_EVENT_ARRAY)
            return 0;
        return take(&answer, about(map, EGPU_OP_DELETE, 0, key, NULL, &answer), NULL, 0);
    default: /* the caller may give one buffer for both keys */
        error = about(map, EGPU_OP_NEXT_KEY, 0, key, NULL, &answer);
        return take(&answer, error, place(attr->next_key), map->key_size);
    }
}

/* Batches, an element after the other.  The cursor is the last key of the batch before. */
static long batch_read(union bpf_attr *attr, struct object *map, bool take_away)
{
    const uint32_t wanted = attr->batch.count;
    unsigned char *keys = place(attr->batch.keys), *values = place(attr->batch.values);
    const void *cursor = pointer(attr->batch.in_batch);
    long error = 0;
    uint32_t done = 0;
    while (done < wanted) {
        unsigned char *key = keys + (size_t)done * map->key_size;
        unsigned char *value = values + (size_t)done * map->user_size;
        struct answer answer;
        error = take(&answer, about(map, EGPU_OP_NEXT_KEY, 0, cursor, NULL, &answer), key,
                     map->key_size);
        if (error != 0)
            break;
        error = take(&answer, about(map, EGPU_OP_LOOKUP, 0, key, NULL, &answer), value,
                     map->user_size);
        cursor = key;
        if (error == 0)
            done++;
        else if (error != -ENOENT) /* it may have gone meanwhile */
            break;
    }
    if (done > 0)
        memcpy(place(attr->batch.out_batch), keys + (size_t)(done - 1) * map->key_size,
               map->key_size);
    for (uint32_t i = 0; take_away && i < done; i++) {
        struct answer answer;
        int gone = about(map, EGPU_OP_DELETE, 0, keys + (size_t)i * map->key_size, NULL, &answer);
        free(answer.bytes);
        if (gone != 0 && gone != -ENOENT)
            return gone;
    }
    attr->batch.count = done;
    return error;
}

static long batch_write(union bpf_attr *attr, struct object *map, bool update)
{
    const unsigned char *keys = pointer(attr->batch.keys), *values = pointer(attr->batch.values);
    long error = 0;
    uint32_t done = 0;
    for (; error == 0 && done < attr->batch.count; done += error == 0) {
        const void *key = keys + (size_t)done * map->key_size;
        const void *value = update ? values + (size_t)done * map->user_size : NULL;
        struct answer answer;
        error = about(map, update ? EGPU_OP_UPDATE : EGPU_OP_DELETE, attr->batch.elem_flags, key,
                      value, &answer);
        free(answer.bytes);
    }
    attr->batch.count = done;
    return error;
}

static long batch(int command, union bpf_attr *attr)
{
    struct object *map = object_as(attr->batch.map_fd, OBJECT_MAP);
    if (map == NULL)
        return -EBADF;
    if (command == BPF_MAP_UPDATE_BATCH || command == BPF_MAP_DELETE_BATCH)
        return batch_write(attr, map, command == BPF_MAP_UPDATE_BATCH);
    return batch_read(attr, map, command == BPF_MAP_LOOKUP_AND_DELETE_BATCH);
}

static long freeze(const union bpf_attr *attr)
{
    struct object *map = object_as(attr->map_fd, OBJECT_MAP);
    struct answer answer;
    if (map == NULL)
        return -EBADF;
    return take(&answer, about(map, EGPU_OP_FREEZE, 0, NULL, NULL, &answer), NULL, 0);
}

static long info(union bpf_attr *attr)
{
    const struct object *object = object_of((int)attr->info.bpf_fd);
    union {
        struct bpf_map_info map;
        struct bpf_prog_info program;
        struct bpf_btf_info btf;
        struct bpf_link_info link;
    } answer;
    memset(&answer, 0, sizeof answer);
    size_t size = 0;
    if (object == NULL)
        return -EBADF;
    switch (object->kind) {
    case OBJECT_MAP:
        size = sizeof answer.map;
        answer.map.type = object->type;
        answer.map.id = object->number;
        answer.map.key_size = object->key_size;
        answer.map.value_size = object->value_size;
        answer.map.max_entries = object->max_entries;
        answer.map.map_flags = object->flags;
        memcpy(answer.map.name, object->name, sizeof answer.map.name);
        break;
    case OBJECT_PROGRAM:
        size = sizeof answer.program;
        answer.program.type = object->type;
        answer.program.id = object->number;
        memcpy(answer.program.name, object->name, sizeof answer.program.name);
        break;
    case OBJECT_LINK:
        size = sizeof answer.link;
        answer.link.id = object->number;
        break;
    default:
        size = sizeof answer.btf;
        break;
    }
    if (attr->info.info_len < size)
        size = attr->info.info_len;
    memcpy(place(attr->info.info), &answer, size);
    attr->info.info_len = (uint32_t)size;
    return 0;
}

/* Binds a program to a place; the session's number of the link, or a negative error number. */
long link_probe(const struct object *program, const struct object *event)
{
    struct egpu_loader_request request = {.op = EGPU_OP_LINK,
                                          .object = program->number,
                                          .a = event->is_return,
                                          .b = event->is_uprobe};
    const void *parts[] = {event->place};
    const size_t sizes[] = {strlen(event->place)};
    struct answer answer;
    int error = ask(&request, parts, sizes, 1, &answer);
    if (error != 0 && answer.size > 0)
        say("%.*s", (int)answer.size, (const char *)answer.bytes);
    free(answer.bytes);
    return error != 0 ? error : (long)answer.value;
}

static long link_create(const union bpf_attr *attr)
{
    const struct object *program = object_as(attr->link_create.prog_fd, OBJECT_PROGRAM);
    const struct object *event = object_as(attr->link_create.target_fd, OBJECT_PERF);
    if (program == NULL || event == NULL) /* libbpf asks with -1 whether there are such links */
        return -EBADF;
    if (attr->link_create.attach_type != BPF_PERF_EVENT)
        return -EINVAL;
    long number = link_probe(program, event);
    if (number < 0)
        return number;
    struct object link = {.kind = OBJECT_LINK, .number = (uint32_t)number};
    int fd = object_create(&link);
    return fd < 0 ? -errno : fd;
}

long unlink_probe(uint32_t number)
{
    struct answer answer;
    struct egpu_loader_request request = {.op = EGPU_OP_UNLINK, .object = number};
    int error = ask(&request, NULL, NULL, 0, &answer);
    free(answer.bytes);
    return error;
}

static long unlink_now(uint32_t fd)
{
    const struct object *link = object_as(fd, OBJECT_LINK);
    return link == NULL ? -EBADF : unlink_probe(link->number);
}

static long empty(enum object_kind kind)
{
    struct object object = {.kind = kind};
    int fd = object_create(&object);
    return fd < 0 ? -errno : fd;
}

long do_bpf(int command, union bpf_attr *attr, unsigned size)
{
    /* A caller of an older kernel's header gives less: what is missing is zero. */
    union bpf_attr own;
    memset(&own, 0, sizeof own);
    memcpy(&own, attr, size < sizeof own ? size : sizeof own);
    long result;
    switch (command) {
    case BPF_MAP_CREATE:
        return map_create(&own);
    case BPF_PROG_LOAD:
        return program_load(&own);
    case BPF_MAP_LOOKUP_ELEM:
    case BPF_MAP_UPDATE_ELEM:
    case BPF_MAP_DELETE_ELEM:
    case BPF_MAP_GET_NEXT_KEY:
    case BPF_MAP_LOOKUP_AND_DELETE_ELEM:
        return element(command, &own);
    case BPF_MAP_LOOKUP_BATCH:
    case BPF_MAP_LOOKUP_AND_DELETE_BATCH:
    case BPF_MAP_UPDATE_BATCH:
    case BPF_MAP_DELETE_BATCH:
        result = batch(command, &own);
        attr->batch.count = own.batch.count;
        return result;
    case BPF_MAP_FREEZE:
        return freeze(&own);
    case BPF_OBJ_GET_INFO_BY_FD:
        result = info(&own);
        attr->info.info_len = own.info.info_len;
        return result;
    case BPF_BTF_LOAD: /* keys and values are bytes to us; the program has the types */
        return empty(OBJECT_BTF);
    case BPF_PROG_BIND_MAP:
        return 0;
    case BPF_LINK_CREATE:
        return link_create(&own);
    case BPF_LINK_DETACH:
        return unlink_now(own.link_detach.link_fd);
    default:
        return -EINVAL; /* what Linux says of commands that it does not know */
    }
}
