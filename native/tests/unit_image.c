/* Prints the length that the agent finds for the image in each file, read into memory that ends
 * where the file ends (a sanitizer build then catches any read past it).  "wrapper" before a file
 * name puts a fatbin wrapper in front. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "../agent/agent.h"

struct agent egpu;

/* What image.c needs of the rest of the agent, for what is not tested here. */
int egpu_memory_file(const char *name, uint64_t size)
{
    (void)name, (void)size;
    return -1;
}

void egpu_say(const char *format, ...)
{
    (void)format;
}

int egpu_wire_send(uint32_t kind, uint32_t request, const void *fixed, size_t fixed_size,
                   const char *const *texts, const size_t *sizes, size_t count, int file)
{
    (void)kind, (void)request, (void)fixed, (void)fixed_size, (void)texts, (void)sizes;
    (void)count, (void)file;
    return -1;
}

int main(int argc, char **argv)
{
    int wrapped = 0;
    for (int i = 1; i < argc; i++) {
        struct stat status;
        const void *start;
        if (strcmp(argv[i], "wrapper") == 0) {
            wrapped = 1;
            continue;
        }
        FILE *file = fopen(argv[i], "rb");
        if (file == NULL || fstat(fileno(file), &status) != 0)
            return 1;
        char *bytes = malloc((size_t)status.st_size);
        if (bytes == NULL || fread(bytes, 1, (size_t)status.st_size, file) != (size_t)status.st_size)
            return 1;
        fclose(file);
        struct {
            uint32_t magic, version;
            const void *data, *second;
        } wrapper = {0x466243b1, 1, bytes, NULL};
        uint64_t size = egpu_image_size(wrapped ? (void *)&wrapper : bytes, &start);
        printf("%llu%s\n", (unsigned long long)size, start == bytes ? "" : " elsewhere");
        free(bytes);
        wrapped = 0;
    }
    return 0;
}
