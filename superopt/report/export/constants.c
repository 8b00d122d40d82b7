/* Constants that are derived from the weights when the model is opened: Winograd's transforms of filters,
   the products of a matrix with each of them (cook_toom.py), in the order in which kernels read
   them. In float64, rounded once. */

/* Loops over so many filters, always, are vectorized. */
enum { FILTERS_AT_ONCE = 32, MAX_TAPS = 128 };

/* Compute products[row][filter]. */
static void transform_filters(const struct derived *m, const float *filters, float *products)
{
    static const double zeros[FILTERS_AT_ONCE];
    double columns[MAX_TAPS][FILTERS_AT_ONCE], sums[FILTERS_AT_ONCE];
    memset(columns, 0, sizeof columns);
    for (size_t begin = 0; begin < m->count; begin += FILTERS_AT_ONCE) {
        size_t some = m->count - begin < FILTERS_AT_ONCE ? m->count - begin : FILTERS_AT_ONCE;
        const float *own = filters + begin * (size_t)m->taps;
        for (size_t n = 0; n < some; n++)
            for (int tap = 0; tap < m->taps; tap++)
                columns[tap][n] = own[n * (size_t)m->taps + (size_t)tap];
        for (int row = 0; row < m->rows; row++) {
            memcpy(sums, zeros, sizeof sums);
            for (int tap = 0; tap < m->taps; tap++) {
                double factor = m->matrix[row * m->taps + tap];
                if (factor == 0)
                    continue;
                for (int n = 0; n < FILTERS_AT_ONCE; n++)
                    sums[n] += factor * columns[tap][n];
            }
            float *out = products + (size_t)row * m->count + begin;
            for (size_t n = 0; n < some; n++)
                out[n] = (float)sums[n];
        }
    }
}

/* Write the products in the order of the constant, axis by axis; return the end. */
static float *copy_products(const struct derived *m, int axis, const float *products, float *out)
{
    int64_t length = m->shape[axis], stride = m->strides[axis];
    if (axis + 1 < m->rank)
        for (int64_t k = 0; k < length; k++)
            out = copy_products(m, axis + 1, products + k * stride, out);
    else if (stride == 1) {
        memcpy(out, products, (size_t)length * sizeof *out);
        out += length;
    }
    else
        for (int64_t k = 0; k < length; k++)
            *out++ = products[k * stride];
    return out;
}

/* Make all constants that are not stored. Return an error code. */
static int make_constants(const unsigned char *weights, unsigned char **out)
{
    size_t most = 0;
    for (int n = 0; n < DERIVED; n++) {
        size_t bytes = (size_t)derived[n].rows * derived[n].count * sizeof(float);
        most = bytes > most ? bytes : most;
    }
    float *products = new_pages(most > 0 ? most : 1);
    *out = products == NULL ? NULL : new_pages(DERIVED_BYTES > 0 ? DERIVED_BYTES : 1);
    for (int n = 0; n < DERIVED && *out != NULL; n++) {
        transform_filters(&derived[n], (const float *)(const void *)(weights + derived[n].filters), products);
        copy_products(&derived[n], 0, products + derived[n].first, (float *)(void *)(*out + derived[n].at));
    }
    if (products != NULL)
        free_pages(products, most > 0 ? most : 1);
    return *out == NULL ? CODE(NO_MEMORY) : CODE(OK);
}
