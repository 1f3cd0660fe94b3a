#include "tensors.h"

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "tensorflow/c/tf_tstring.h"

/* A batch is computed in another order of additions than a single sentence. */
#define FLOAT_TOLERANCE 1e-4

/* Gives column `index` of a line; the caller frees its data. */
static Text get_column(const Text *line, int index) {
  const char *byte = line->data, *end = byte + line->size;
  for (; index > 0; --index) {
    byte = memchr(byte, '\t', (size_t)(end - byte));
    if (!byte) fail("a line has too few columns: '%.40s'", line->data);
    ++byte;
  }
  const char *next = memchr(byte, '\t', (size_t)(end - byte));
  if (next) end = next;
  Text column = {allocate((size_t)(end - byte) + 1, 1), 0};
  while (byte < end) {
    char value = *byte++;
    if (value == '\\' && byte < end) {
      value = *byte++;
      value = value == 't' ? '\t' : value == 'n' ? '\n' : value;
    }
    column.data[column.size++] = value;
  }
  return column;
}

/* Gives the numbers of a column, separated by spaces, as float64, and how many there are. */
static double *parse_numbers(const Text *column, int64_t *count) {
  double *numbers = allocate(column->size / 2 + 1, sizeof *numbers);
  char *place = column->data, *end;
  for (*count = 0;; place = end) {
    double number = strtod(place, &end);
    if (end == place) break;
    numbers[(*count)++] = number;
  }
  if (place[strspn(place, " ")]) fail("expected numbers, got '%.40s'", column->data);
  return numbers;
}

static TF_Tensor *make_strings(Text *columns, int64_t num_rows) {
  TF_Tensor *tensor =
      TF_AllocateTensor(TF_STRING, &num_rows, 1, (size_t)num_rows * sizeof(TF_TString));
  TF_TString *strings = TF_TensorData(tensor);
  for (int64_t row = 0; row < num_rows; ++row) {
    TF_StringInit(&strings[row]);
    TF_StringCopy(&strings[row], columns[row].data, columns[row].size);
  }
  return tensor;
}

static void store_number(void *data, TF_DataType type, int64_t index, double number) {
  switch (type) {
    case TF_FLOAT: ((float *)data)[index] = (float)number; break;
    case TF_DOUBLE: ((double *)data)[index] = number; break;
    case TF_INT32: ((int32_t *)data)[index] = (int32_t)number; break;
    case TF_INT64: ((int64_t *)data)[index] = (int64_t)number; break;
    case TF_BOOL: ((unsigned char *)data)[index] = number != 0; break;
    default: fail("inputs of type %d are not known", (int)type);
  }
}

static TF_Tensor *make_numbers(Text *columns, int64_t num_rows, TF_DataType type, int rank) {
  double **rows = allocate((size_t)num_rows, sizeof *rows);
  int64_t *counts = allocate((size_t)num_rows, sizeof *counts), longest = 0;
  for (int64_t row = 0; row < num_rows; ++row) {
    rows[row] = parse_numbers(&columns[row], &counts[row]);
    if (rank == 1 && counts[row] != 1) fail("expected one number, got '%.40s'", columns[row].data);
    if (counts[row] > longest) longest = counts[row];
  }
  const int64_t shape[] = {num_rows, longest};
  const size_t size = (size_t)(num_rows * (rank == 1 ? 1 : longest)) * TF_DataTypeSize(type);
  TF_Tensor *tensor = TF_AllocateTensor(type, shape, rank, size);
  if (size) memset(TF_TensorData(tensor), 0, size);
  for (int64_t row = 0; row < num_rows; free(rows[row++]))
    for (int64_t place = 0; place < counts[row]; ++place)
      store_number(TF_TensorData(tensor), type, row * longest + place, rows[row][place]);
  free(counts);
  free(rows);
  return tensor;
}

TF_Tensor *tensor_of_column(TF_DataType type, int rank, int index, const Text *const *lines,
                            int num_rows) {
  if (rank < 1 || rank > (type == TF_STRING ? 1 : 2)) fail("inputs of rank %d are not known", rank);
  Text *columns = allocate((size_t)num_rows, sizeof *columns);
  for (int row = 0; row < num_rows; ++row) columns[row] = get_column(lines[row], index);
  TF_Tensor *tensor = type == TF_STRING ? make_strings(columns, num_rows)
                                        : make_numbers(columns, num_rows, type, rank);
  free_lines(columns, (size_t)num_rows);
  return tensor;
}

void free_made(TF_Tensor *tensor) {
  /* Strings belong to who made them; a TensorFlow that frees them as well finds them empty. */
  TF_TString *strings = TF_TensorType(tensor) == TF_STRING ? TF_TensorData(tensor) : NULL;
  for (int64_t row = 0; strings && row < TF_Dim(tensor, 0); ++row) TF_StringDealloc(&strings[row]);
  TF_DeleteTensor(tensor);
}

static int64_t values_of_a_row(const TF_Tensor *output) {
  int64_t count = 1;
  for (int dimension = 1; dimension < TF_NumDims(output); ++dimension)
    count *= TF_Dim(output, dimension);
  return count;
}

static double get_number(const TF_Tensor *output, int64_t index) {
  const void *data = TF_TensorData(output);
  switch (TF_TensorType(output)) {
    case TF_FLOAT: return ((const float *)data)[index];
    case TF_DOUBLE: return ((const double *)data)[index];
    case TF_INT32: return ((const int32_t *)data)[index];
    case TF_INT64: return (double)((const int64_t *)data)[index];
    case TF_BOOL: return ((const unsigned char *)data)[index];
    default: fail("outputs of type %d are not known", (int)TF_TensorType(output));
  }
}

static const TF_TString *get_string(const TF_Tensor *output, int64_t index) {
  return &((const TF_TString *)TF_TensorData(output))[index];
}

void print_row(FILE *stream, const TF_Tensor *output, int row) {
  const int64_t count = values_of_a_row(output), first = row * count;
  for (int64_t index = first; index < first + count; ++index) {
    if (index > first) fputc('\t', stream);
    if (TF_TensorType(output) != TF_STRING) {
      fprintf(stream, "%.9g", get_number(output, index));
      continue;
    }
    const TF_TString *string = get_string(output, index);
    const char *bytes = TF_StringGetDataPointer(string);
    for (size_t place = 0; place < TF_StringGetSize(string); ++place) {
      const char byte = bytes[place];
      if (byte == '\t' || byte == '\n' || byte == '\\') fputc('\\', stream);
      fputc(byte == '\t' ? 't' : byte == '\n' ? 'n' : byte, stream);
    }
  }
  fputc('\n', stream);
}

bool same_row(const TF_Tensor *a, int row_of_a, const TF_Tensor *b, int row_of_b) {
  const int64_t count = values_of_a_row(a);
  if (count != values_of_a_row(b)) return false;
  for (int64_t index = 0; index < count; ++index) {
    const int64_t in_a = row_of_a * count + index, in_b = row_of_b * count + index;
    if (TF_TensorType(a) == TF_STRING) {
      const TF_TString *first = get_string(a, in_a), *second = get_string(b, in_b);
      const size_t size = TF_StringGetSize(first);
      if (size != TF_StringGetSize(second) ||
          memcmp(TF_StringGetDataPointer(first), TF_StringGetDataPointer(second), size))
        return false;
    } else if (!(fabs(get_number(a, in_a) - get_number(b, in_b)) <= FLOAT_TOLERANCE)) {
      return false;
    }
  }
  return true;
}
