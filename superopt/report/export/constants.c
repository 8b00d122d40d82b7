/* Constants that are made of the weights when the model is opened: Winograd's transforms of filters,
   the products of a matrix with each of them (cook_toom.py), in the order in which kernels read
   them. In float64, rounded once. */

enum { FILTERS_AT_ONCE = 64 };

/* Compute products[row][filter] of some filters. */
static void transform_filters(const struct made *m, const float *filters, float *products)
{
    double columns[FILTERS_AT_ONCE], sums[FILTERS_AT_ONCE];
    for (size_t begin = 0; begin < m->count; begin += FILTERS_AT_ONCE) {
        size_t some = m->count - begin < FILTERS_AT_ONCE ? m->count - begin : FILTERS_AT_ONCE;
        for (int row = 0; row < m->rows; row++) {
            memset(sums, 0, sizeof sums);
            for (int tap = 0; tap < m->taps; tap++) {
                double factor = m->matrix[row * m->taps + tap];
                if (factor == 0)
                    continue;
                for (size_t n = 0; n < some; n++)
                    columns[n] = filters[(begin + n) * (size_t)m->taps + (size_t)tap];
                for (size_t n = 0; n < some; n++)
                    sums[n] += factor * columns[n];
            }
            for (size_t n = 0; n < some; n++)
                products[(size_t)row * m->count + begin + n] = (float)sums[n];
        }
    }
}

/* Write the products in the order of the constant: loops over all axes but the last as one. */
static void copy_products(const struct made *m, const float *products, float *out)
{
    int last = m->rank - 1;
    int64_t outer = 1, length = m->shape[last], stride = m->strides[last];
    for (int axis = 0; axis < last; axis++)
        outer *= m->shape[axis];
    for (int64_t n = 0; n < outer; n++) {
        int64_t at = (int64_t)m->first, rest = n;
        for (int axis = last - 1; axis >= 0; axis--) {
            at += rest % m->shape[axis] * m->strides[axis];
            rest /= m->shape[axis];
        }
        for (int64_t k = 0; k < length; k++)
            *out++ = products[at + k * stride];
    }
}

/* Make all constants that are not stored. Return an error code. */
static int make_constants(const unsigned char *weights, unsigned char **out)
{
    size_t most = 0;
    for (int n = 0; n < MADE; n++) {
        size_t bytes = (size_t)made[n].rows * made[n].count * sizeof(float);
        most = bytes > most ? bytes : most;
    }
    float *products = new_pages(most > 0 ? most : 1);
    *out = products == NULL ? NULL : new_pages(MADE_BYTES > 0 ? MADE_BYTES : 1);
    for (int n = 0; n < MADE && *out != NULL; n++) {
        transform_filters(&made[n], (const float *)(const void *)(weights + made[n].filters), products);
        copy_products(&made[n], products, (float *)(void *)(*out + made[n].at));
    }
    if (products != NULL)
        free_pages(products, most > 0 ? most : 1);
    return *out == NULL ? CODE(NO_MEMORY) : CODE(OK);
}
