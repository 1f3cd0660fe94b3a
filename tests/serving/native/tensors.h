/* Makes tensors of lines of text, and prints and compares the rows of tensors. */
#ifndef TENSORS_H_
#define TENSORS_H_

#include <stdbool.h>

#include "signature.h"

/* Makes the tensor of column `index` of the lines: [B] or, for numbers of rank 2, [B, L]. */
TF_Tensor *tensor_of_column(TF_DataType type, int rank, int index, const Text *const *lines,
                            int num_rows);

/* Frees a tensor of tensor_of_column. */
void free_made(TF_Tensor *tensor);

/* Prints the values of one row of a tensor, [B, ...], in one line, separated by tabs. Strings are
 * escaped as those of the input are. */
void print_row(FILE *stream, const TF_Tensor *tensor, int row);

/* Tells whether two rows hold the same strings and integers, and nearly the same floats. */
bool same_row(const TF_Tensor *a, int row_of_a, const TF_Tensor *b, int row_of_b);

#endif
