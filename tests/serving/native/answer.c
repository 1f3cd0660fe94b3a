/* Answers every line of the standard input with a signature of a SavedModel: no Python anywhere.
 *
 *   answer MODEL_FOLDER OP_LIBRARIES INPUT_TENSORS OUTPUT_TENSORS BATCH_SIZE...
 *
 * Libraries and tensors ("serving_default_text:0") are lists, separated by commas. A line has the
 * columns of a row, one for each input of the signature, separated by tabs: a string or a number.
 * Each row gives one line for each output, its values separated by tabs. In strings "\t", "\n" and
 * "\\" stand for a tab, a line feed and a backslash. The batch sizes take turns; without any input
 * one empty batch is asked. Whatever goes wrong is one line on the standard error, and ends the
 * program with status 1.
 */
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tensorflow/c/c_api.h"
#include "tensorflow/c/tf_tstring.h"

#define MAX_TENSORS 16

/* Some bytes that may hold any value, NUL included; behind them stands a NUL. */
typedef struct {
  char *data;
  size_t size;
} Text;

static void __attribute__((noreturn, format(printf, 1, 2))) fail(const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  vfprintf(stderr, format, arguments);
  va_end(arguments);
  fputc('\n', stderr);
  fflush(stdout);
  _Exit(1); /* without waiting for TensorFlow's threads */
}

static void check(const TF_Status *status, const char *doing) {
  if (TF_GetCode(status) != TF_OK) fail("%s: %s", doing, TF_Message(status));
}

static void *allocate(size_t count, size_t size) {
  void *memory = calloc(count ? count : 1, size);
  if (!memory) fail("out of memory");
  return memory;
}

/* Gives all lines of the standard input, without their line feeds. */
static Text *read_lines(size_t *num_lines) {
  size_t room = 64;
  Text *lines = allocate(room, sizeof *lines);
  for (*num_lines = 0;; ++*num_lines) {
    if (*num_lines == room && !(lines = realloc(lines, (room *= 2) * sizeof *lines)))
      fail("out of memory");
    Text *line = &lines[*num_lines];
    size_t buffer_size = 0;
    line->data = NULL;
    ssize_t size = getline(&line->data, &buffer_size, stdin);
    if (size < 0) return lines;
    line->size = (size_t)size - (line->data[size - 1] == '\n');
    line->data[line->size] = '\0';
  }
}

static void load_libraries(char *names, TF_Status *status) {
  for (char *rest = names, *name; (name = strtok_r(rest, ",", &rest));) {
    TF_LoadLibrary(name, status);
    check(status, name);
  }
}

/* Finds the tensors "operation:index" of a list, and gives their number. */
static int find_tensors(TF_Graph *graph, char *names, TF_Output *found) {
  int count = 0;
  for (char *rest = names, *name; (name = strtok_r(rest, ",", &rest)); ++count) {
    char *colon = strrchr(name, ':');
    if (!colon || count == MAX_TENSORS) fail("expected up to 16 tensors 'name:0', got '%s'", name);
    *colon = '\0';
    found[count] = (TF_Output){TF_GraphOperationByName(graph, name), atoi(colon + 1)};
    if (!found[count].oper || found[count].index >= TF_OperationNumOutputs(found[count].oper))
      fail("the model has no tensor '%s:%s'", name, colon + 1);
  }
  return count;
}

/* Gives column `index` of a line, its escapes replaced. */
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

/* Makes the tensor [B] of a column of some lines. */
static TF_Tensor *make_input(TF_DataType type, int index, const Text *lines, int64_t num_rows) {
  const size_t size = type == TF_STRING ? sizeof(TF_TString) : TF_DataTypeSize(type);
  TF_Tensor *tensor = TF_AllocateTensor(type, &num_rows, 1, (size_t)num_rows * size);
  void *data = TF_TensorData(tensor);
  for (int64_t row = 0; row < num_rows; ++row) {
    Text column = get_column(&lines[row], index);
    char *end = column.data;
    if (type == TF_STRING) {
      TF_StringInit((TF_TString *)data + row);
      TF_StringCopy((TF_TString *)data + row, column.data, column.size);
      end += column.size;
    } else if (type == TF_FLOAT) {
      ((float *)data)[row] = strtof(column.data, &end);
    } else if (type == TF_INT32) {
      ((int32_t *)data)[row] = (int32_t)strtol(column.data, &end, 10);
    } else {
      fail("inputs of type %d are not known", (int)type);
    }
    if (*end) fail("expected one number, got '%.40s'", column.data);
    free(column.data);
  }
  return tensor;
}

static void print_string(const TF_TString *string) {
  const char *bytes = TF_StringGetDataPointer(string);
  for (size_t place = 0; place < TF_StringGetSize(string); ++place) {
    const char byte = bytes[place];
    if (byte == '\t' || byte == '\n' || byte == '\\') putchar('\\');
    putchar(byte == '\t' ? 't' : byte == '\n' ? 'n' : byte);
  }
}

/* Prints the values of one row of a tensor [B, ...] in one line. */
static void print_row(const TF_Tensor *output, int row) {
  int64_t count = 1;
  for (int axis = 1; axis < TF_NumDims(output); ++axis) count *= TF_Dim(output, axis);
  const void *data = TF_TensorData(output);
  for (int64_t index = row * count; index < (row + 1) * count; ++index) {
    if (index > row * count) putchar('\t');
    switch (TF_TensorType(output)) {
      case TF_STRING: print_string((const TF_TString *)data + index); break;
      case TF_FLOAT: printf("%.9g", (double)((const float *)data)[index]); break;
      case TF_INT32: printf("%d", ((const int32_t *)data)[index]); break;
      case TF_BOOL: printf("%d", ((const unsigned char *)data)[index]); break;
      default: fail("outputs of type %d are not known", (int)TF_TensorType(output));
    }
  }
  putchar('\n');
}

int main(int argc, char **argv) {
  if (argc < 6) fail("usage: %s MODEL OP_LIBRARIES INPUTS OUTPUTS BATCH_SIZE...", argv[0]);
  TF_Status *status = TF_NewStatus();
  TF_Graph *graph = TF_NewGraph();
  load_libraries(argv[2], status);
  TF_Session *session = TF_LoadSessionFromSavedModel(
      TF_NewSessionOptions(), NULL, argv[1], (const char *[]){"serve"}, 1, graph, NULL, status);
  check(status, argv[1]);
  TF_Output inputs[MAX_TENSORS], outputs[MAX_TENSORS];
  TF_Tensor *asked[MAX_TENSORS], *answers[MAX_TENSORS];
  const int num_inputs = find_tensors(graph, argv[3], inputs);
  const int num_outputs = find_tensors(graph, argv[4], outputs);
  size_t num_lines, first = 0;
  const Text *lines = read_lines(&num_lines);
  int turn = 0;
  do {
    const int batch_size = atoi(argv[5 + turn++ % (argc - 5)]);
    if (batch_size < 1) fail("a batch size must be at least 1");
    const size_t left = num_lines - first;
    const int num_rows = left < (size_t)batch_size ? (int)left : batch_size;
    for (int index = 0; index < num_inputs; ++index)
      asked[index] =
          make_input(TF_OperationOutputType(inputs[index]), index, lines + first, num_rows);
    TF_SessionRun(session, NULL, inputs, asked, num_inputs, outputs, answers, num_outputs, NULL, 0,
                  NULL, status);
    check(status, "running the signature");
    for (int index = 0; index < num_outputs; ++index)
      if (TF_NumDims(answers[index]) < 1 || TF_Dim(answers[index], 0) != num_rows)
        fail("output %d has no row for each of the %d rows of the input", index, num_rows);
    for (int row = 0; row < num_rows; ++row)
      for (int index = 0; index < num_outputs; ++index) print_row(answers[index], row);
    for (int index = 0; index < num_outputs; ++index) TF_DeleteTensor(answers[index]);
    for (int index = 0; index < num_inputs; ++index) TF_DeleteTensor(asked[index]);
    first += (size_t)num_rows;
  } while (first < num_lines);
  TF_DeleteSession(session, status);
  check(status, "closing the model");
  return 0;
}
