/* The file of weights: a header, and WEIGHTS bytes. */

#define HEAD (sizeof head - 1)
#define FILE_SIZE (HEAD + (size_t)WEIGHTS)

/* Sums of words and of these sums: the second kind detects moved words. */
static int whole(const unsigned char *weights)
{
    uint64_t sum = 0, sums = 0;
    for (size_t at = HEAD; at < FILE_SIZE; at += sizeof(uint64_t)) {
        uint64_t word;
        memcpy(&word, weights + at, sizeof word);
        sum += word;
        sums += sum;
    }
    return sum == SUM && sums == SUMS;
}
