/* What the session wants done to maps: copies into the device arena, and operations by a kernel of
 * its own.  One command at a time for each arena, on a stream that nothing else uses: an operation
 * that waits for room on the device must not hold up snapshots.  Under the arena lock. */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "agent.h"

enum { OPERATOR_LIMIT = 1 << 16, OPERATION_THREADS = 64, IMAGE_LIMIT = 64 << 20, ANSWERS = 64 };

static const char kernel_name[] = "egpu_operate";

struct operation {
    struct operation *next;
    uint32_t number;
    CUfunction function;
};

/* Answers to come, the thread's own: a session that does not read must not hold the arena lock. */
static struct {
    uint32_t request;
    struct egpu_command_done message;
} answers[ANSWERS];
static uint32_t answer_count;

static void answer(struct arena *arena, uint32_t error, CUresult detail)
{
    struct command *command = &arena->command;
    if (answer_count == ANSWERS)
        return; /* at the next turn */
    if (command->file >= 0)
        close(command->file);
    answers[answer_count].request = command->request;
    answers[answer_count++].message = (struct egpu_command_done){error, (uint32_t)detail};
    *command = (struct command){.file = -1};
}

/* Sends them.  Not under the arena lock. */
void egpu_commands_answer(void)
{
    for (uint32_t i = 0; i < answer_count; i++)
        egpu_wire_send(EGPU_COMMAND_DONE, answers[i].request, &answers[i].message,
                       sizeof answers[i].message, NULL, NULL, 0, -1);
    answer_count = 0;
}

static void refuse(uint32_t request, uint32_t error)
{
    struct egpu_command_done message = {error, 0};
    egpu_wire_send(EGPU_COMMAND_DONE, request, &message, sizeof message, NULL, NULL, 0, -1);
}

static bool take(struct command *command, const unsigned char *body, size_t size)
{
    switch (command->kind) {
    case EGPU_WRITE:
        if (size == sizeof command->body.write)
            memcpy(&command->body.write, body, size);
        return size == sizeof command->body.write;
    case EGPU_OPERATOR:
        if (size == sizeof command->body.operator)
            memcpy(&command->body.operator, body, size);
        return size == sizeof command->body.operator && command->file >= 0;
    default:
        if (size == sizeof command->body.operate)
            memcpy(&command->body.operate, body, size);
        return size == sizeof command->body.operate;
    }
}

static uint32_t arena_number(const struct command *command)
{
    return command->kind == EGPU_WRITE      ? command->body.write.arena
           : command->kind == EGPU_OPERATOR ? command->body.operator.arena
                                            : command->body.operate.arena;
}

/* A command of the session; takes the file.  It begins at the thread's next turn. */
void egpu_command(const unsigned char *packet, size_t size, int *files)
{
    struct egpu_header header;
    memcpy(&header, packet, sizeof header);
    struct command command = {.kind = header.kind, .request = header.request, .file = files[0]};
    files[0] = -1;
    uint32_t error = EGPU_COMMAND_MALFORMED;
    if (take(&command, packet + sizeof header, size - sizeof header)) {
        pthread_mutex_lock(&egpu.arena_lock);
        struct arena *arena = egpu_arenas();
        while (arena != NULL && arena->number != arena_number(&command))
            arena = arena->next;
        int state = arena != NULL ? atomic_load(&arena->state) : ARENA_GONE;
        error = state == ARENA_GONE || state == ARENA_FAILED ? EGPU_COMMAND_GONE
                : arena->command.kind != 0                   ? EGPU_COMMAND_BUSY
                                                             : EGPU_COMMAND_NONE;
        if (error == EGPU_COMMAND_NONE) {
            arena->command = command;
            command.file = -1;
        }
        pthread_mutex_unlock(&egpu.arena_lock);
    }
    if (command.file >= 0)
        close(command.file);
    if (error != EGPU_COMMAND_NONE)
        refuse(header.request, error);
}

static bool row_fits(const struct egpu_write_row *row, uint64_t room, uint64_t device)
{
    if (row->rows == 0 || row->size == 0 || row->rows > room || row->size > room / row->rows ||
        row->offset > device || row->size > device - row->offset)
        return false;
    uint64_t left = device - row->offset - row->size;
    return row->rows == 1 ||
           (row->stride >= row->size && row->stride <= left / (row->rows - 1));
}

static CUresult write_row(struct arena *arena, const struct egpu_write_row *row,
                          const unsigned char *bytes)
{
    CUDA_MEMCPY2D_v2 copy = {
        .srcMemoryType = CU_MEMORYTYPE_HOST, .srcHost = bytes, .srcPitch = row->size,
        .dstMemoryType = CU_MEMORYTYPE_DEVICE, .dstDevice = arena->address + row->offset,
        .dstPitch = row->stride, .WidthInBytes = row->size, .Height = row->rows,
    };
    if (row->rows == 1)
        return CALL(cuMemcpyHtoDAsync_v2, copy.dstDevice, bytes, row->size, arena->command_stream);
    return CALL(cuMemcpy2DAsync_v2, &copy, arena->command_stream);
}

/* The command area as it is now; false without one. */
static bool area(const struct arena *arena, unsigned char **start, uint64_t *size)
{
    uint64_t offset;
    memcpy(&offset, arena->host + EGPU_HOST_CONTROL_AT_COMMANDS, sizeof offset);
    memcpy(size, arena->host + EGPU_HOST_CONTROL_AT_COMMANDS_SIZE, sizeof *size);
    *start = arena->host + offset;
    return offset >= EGPU_HOST_CONTROL_SIZE && offset <= arena->snapshot_offset && *size != 0 &&
           *size <= arena->snapshot_offset - offset;
}

static uint32_t issue_write(struct arena *arena, CUresult *detail)
{
    const struct egpu_write *write = &arena->command.body.write;
    unsigned char *start;
    uint64_t room;
    if (!area(arena, &start, &room) || write->size > room)
        return EGPU_COMMAND_MALFORMED;
    for (uint64_t at = 0; at < write->size;) {
        struct egpu_write_row row;
        if (write->size - at < sizeof row)
            return EGPU_COMMAND_MALFORMED;
        memcpy(&row, start + at, sizeof row);
        at += sizeof row;
        if (!row_fits(&row, write->size - at, arena->device_size))
            return EGPU_COMMAND_MALFORMED;
        if ((*detail = write_row(arena, &row, start + at)) != CUDA_SUCCESS)
            return EGPU_COMMAND_DRIVER;
        at += (row.rows * row.size + 7) & ~7ull;
    }
    return EGPU_COMMAND_NONE;
}

static uint32_t issue_operator(struct arena *arena, CUresult *detail)
{
    const struct egpu_operator *wanted = &arena->command.body.operator;
    int file = arena->command.file;
    struct stat status;
    CUmodule module = NULL;
    if (wanted->number >= OPERATOR_LIMIT || wanted->size == 0 || wanted->size > IMAGE_LIMIT ||
        fstat(file, &status) != 0 || (uint64_t)status.st_size < wanted->size)
        return EGPU_COMMAND_MALFORMED;
    void *image = mmap(NULL, wanted->size, PROT_READ | PROT_WRITE, MAP_PRIVATE, file, 0);
    struct operation *loaded = calloc(1, sizeof *loaded);
    if (image == MAP_FAILED || loaded == NULL || !egpu_sound(image, wanted->size)) {
        if (image != MAP_FAILED)
            munmap(image, wanted->size);
        free(loaded);
        return EGPU_COMMAND_MALFORMED;
    }
    *detail = CALL(cuModuleLoadDataEx, &module, image, 0, NULL, NULL);
    if (*detail == CUDA_SUCCESS)
        *detail = CALL(cuModuleGetFunction, &loaded->function, module, kernel_name);
    munmap(image, wanted->size);
    if (*detail != CUDA_SUCCESS) {
        free(loaded);
        return EGPU_COMMAND_DRIVER;
    }
    CALL(cuFuncLoad, loaded->function);
    loaded->number = wanted->number;
    loaded->next = arena->operators;
    arena->operators = loaded;
    return EGPU_COMMAND_NONE;
}

static uint32_t issue_operate(struct arena *arena, CUresult *detail)
{
    const struct egpu_operate *wanted = &arena->command.body.operate;
    struct operation *found = arena->operators;
    unsigned char *start;
    uint64_t room;
    while (found != NULL && found->number != wanted->number)
        found = found->next;
    if (found == NULL || !area(arena, &start, &room) || wanted->count == 0 ||
        wanted->results % 8 != 0 || wanted->results > room ||
        wanted->count > (room - wanted->results) / sizeof(uint64_t) ||
        (uint64_t)wanted->count * wanted->stride > wanted->results)
        return EGPU_COMMAND_MALFORMED;
    uint64_t operations = arena->host_address + (uint64_t)(start - arena->host);
    uint64_t results = operations + wanted->results, stride = wanted->stride;
    uint64_t count = wanted->count;
    void *parameters[] = {&operations, &stride, &results, &count, &arena->address,
                          &arena->host_address};
    unsigned blocks = (wanted->count + OPERATION_THREADS - 1) / OPERATION_THREADS;
    *detail = CALL(cuLaunchKernel, found->function, blocks, 1, 1, OPERATION_THREADS, 1, 1, 0,
                   arena->command_stream, parameters, NULL);
    return *detail == CUDA_SUCCESS ? EGPU_COMMAND_NONE : EGPU_COMMAND_DRIVER;
}

static uint32_t issue(struct arena *arena, CUresult *detail)
{
    if (arena->command_stream == NULL &&
        (*detail = CALL(cuStreamCreate, &arena->command_stream, CU_STREAM_NON_BLOCKING)) !=
            CUDA_SUCCESS)
        return EGPU_COMMAND_DRIVER;
    switch (arena->command.kind) {
    case EGPU_WRITE:
        return issue_write(arena, detail);
    case EGPU_OPERATOR:
        return issue_operator(arena, detail);
    default:
        return issue_operate(arena, detail);
    }
}

/* Begins the arena's command or looks whether it is done.  The arena's context is current and the
 * arena ready, or nothing can come of it any more. */
void egpu_command_turn(struct arena *arena)
{
    struct command *command = &arena->command;
    CUresult detail = CUDA_SUCCESS;
    if (command->kind == 0)
        return;
    if (atomic_load(&arena->state) != ARENA_READY) {
        answer(arena, EGPU_COMMAND_GONE, detail);
        return;
    }
    if (!command->issued) {
        uint32_t error = issue(arena, &detail);
        command->issued = true;
        command->failed = error;
        command->detail = detail;
    }
    /* What a malformed command began before its bad row must be over before the area is reused. */
    detail = CALL(cuStreamQuery, arena->command_stream);
    if (detail == CUDA_ERROR_NOT_READY)
        return;
    if (command->failed != EGPU_COMMAND_NONE)
        answer(arena, command->failed, command->detail);
    else if (detail != CUDA_SUCCESS)
        answer(arena, EGPU_COMMAND_DRIVER, detail);
    else
        answer(arena, EGPU_COMMAND_NONE, CUDA_SUCCESS);
}
