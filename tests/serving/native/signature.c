#include "signature.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "tensors.h"

void fail(const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  vfprintf(stderr, format, arguments);
  va_end(arguments);
  fputc('\n', stderr);
  fflush(stdout);
  _Exit(1);
}

static void check(const TF_Status *status, const char *doing) {
  if (TF_GetCode(status) != TF_OK) fail("%s: %s", doing, TF_Message(status));
}

void *allocate(size_t count, size_t size) {
  void *memory = calloc(count ? count : 1, size);
  if (!memory) fail("out of memory");
  return memory;
}

int parse_count(const char *argument, int minimum) {
  char *end;
  long count = strtol(argument, &end, 10);
  if (*end || end == argument || count < minimum || count > 1000000)
    fail("expected a number from %d to 1000000, got '%s'", minimum, argument);
  return (int)count;
}

Text *read_lines(FILE *stream, size_t *num_lines) {
  size_t room = 64;
  Text *lines = allocate(room, sizeof *lines);
  for (*num_lines = 0;; ++*num_lines) {
    if (*num_lines == room) {
      room *= 2;
      lines = realloc(lines, room * sizeof *lines);
      if (!lines) fail("out of memory");
    }
    Text *line = &lines[*num_lines];
    size_t buffer_size = 0;
    line->data = NULL;
    ssize_t size = getline(&line->data, &buffer_size, stream);
    if (size < 0) {
      free(line->data);
      return lines;
    }
    line->size = (size_t)size - (line->data[size - 1] == '\n');
    line->data[line->size] = '\0';
  }
}

void free_lines(Text *lines, size_t num_lines) {
  for (size_t index = 0; index < num_lines; ++index) free(lines[index].data);
  free(lines);
}

static void load_libraries(char *names) {
  TF_Status *status = TF_NewStatus();
  char *rest = names;
  for (char *name; (name = strtok_r(rest, ",", &rest));) {
    TF_Library *library = TF_LoadLibrary(name, status);
    check(status, name);
    TF_DeleteLibraryHandle(library); /* the operations stay */
  }
  TF_DeleteStatus(status);
}

/* Finds the tensors "operation:index" of a list, and gives their number. */
static int find_tensors(TF_Graph *graph, char *names, TF_Output *found) {
  int count = 0;
  char *rest = names;
  for (char *name; (name = strtok_r(rest, ",", &rest)); ++count) {
    char *colon = strrchr(name, ':');
    if (!colon) fail("expected a tensor such as 'name:0', got '%s'", name);
    if (count == MAX_TENSORS) fail("a signature has at most %d tensors", MAX_TENSORS);
    *colon = '\0';
    found[count] = (TF_Output){TF_GraphOperationByName(graph, name), parse_count(colon + 1, 0)};
    if (!found[count].oper || found[count].index >= TF_OperationNumOutputs(found[count].oper))
      fail("the model has no tensor '%s:%s'", name, colon + 1);
  }
  return count;
}

Signature open_signature(char **argv) {
  Signature signature = {.graph = TF_NewGraph()};
  const char *tags[] = {"serve"};
  TF_Status *status = TF_NewStatus();
  TF_SessionOptions *options = TF_NewSessionOptions();
  load_libraries(argv[2]);
  signature.session = TF_LoadSessionFromSavedModel(options, NULL, argv[1], tags, 1,
                                                   signature.graph, NULL, status);
  check(status, argv[1]);
  TF_DeleteSessionOptions(options);
  TF_DeleteStatus(status);
  signature.num_inputs = find_tensors(signature.graph, argv[3], signature.inputs);
  signature.num_outputs = find_tensors(signature.graph, argv[4], signature.outputs);
  return signature;
}

void close_signature(Signature *signature) {
  TF_Status *status = TF_NewStatus();
  TF_DeleteSession(signature->session, status);
  check(status, "closing the model");
  TF_DeleteGraph(signature->graph);
  TF_DeleteStatus(status);
}

static TF_Tensor *make_input(const Signature *signature, int index, const Text *const *lines,
                             int num_rows) {
  TF_Status *status = TF_NewStatus();
  const TF_DataType type = TF_OperationOutputType(signature->inputs[index]);
  const int rank = TF_GraphGetTensorNumDims(signature->graph, signature->inputs[index], status);
  check(status, "reading the rank of an input");
  TF_DeleteStatus(status);
  return tensor_of_column(type, rank, index, lines, num_rows);
}

Exchange run_signature(const Signature *signature, const Text *const *lines, int num_rows) {
  Exchange exchange = {.num_inputs = signature->num_inputs, .num_outputs = signature->num_outputs};
  for (int index = 0; index < signature->num_inputs; ++index)
    exchange.inputs[index] = make_input(signature, index, lines, num_rows);
  TF_Status *status = TF_NewStatus();
  TF_SessionRun(signature->session, NULL, signature->inputs, exchange.inputs,
                signature->num_inputs, signature->outputs, exchange.outputs,
                signature->num_outputs, NULL, 0, NULL, status);
  check(status, "running the signature");
  TF_DeleteStatus(status);
  for (int index = 0; index < signature->num_outputs; ++index) {
    const TF_Tensor *output = exchange.outputs[index];
    if (TF_NumDims(output) < 1 || TF_Dim(output, 0) != num_rows)
      fail("output %d has no row for each of the %d rows of the input", index, num_rows);
  }
  return exchange;
}

void free_exchange(Exchange *exchange) {
  for (int index = 0; index < exchange->num_outputs; ++index)
    TF_DeleteTensor(exchange->outputs[index]);
  for (int index = 0; index < exchange->num_inputs; ++index) free_made(exchange->inputs[index]);
}
