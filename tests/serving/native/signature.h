/* Runs one signature of a SavedModel through TensorFlow's C interface: no Python anywhere.
 *
 * A row of input is a line of text: its columns, one for each input of the signature, are separated
 * by tabs, and inside a column "\t", "\n" and "\\" stand for a tab, a line feed and a backslash.
 * A column is the string itself for an input of strings, one number for an input of numbers of
 * shape [B], and numbers separated by spaces for one of shape [B, L], where short rows end in zeros.
 *
 * Whatever goes wrong is one line on the standard error, and ends the program with status 1.
 */
#ifndef SIGNATURE_H_
#define SIGNATURE_H_

#include <stddef.h>
#include <stdio.h>

#include "tensorflow/c/c_api.h"

#define MAX_TENSORS 16
/* Arguments that open_signature reads: argv[1] to argv[4]. */
#define SIGNATURE_ARGUMENTS 4
#define SIGNATURE_USAGE "MODEL_FOLDER OP_LIBRARIES INPUT_TENSORS OUTPUT_TENSORS"

typedef struct {
  TF_Graph *graph;
  TF_Session *session;
  int num_inputs, num_outputs;
  TF_Output inputs[MAX_TENSORS], outputs[MAX_TENSORS];
} Signature;

/* Some bytes that may hold any value, NUL included; behind them stands a NUL. */
typedef struct {
  char *data;
  size_t size;
} Text;

/* A batch that was asked, and its answer. */
typedef struct {
  int num_inputs, num_outputs;
  TF_Tensor *inputs[MAX_TENSORS], *outputs[MAX_TENSORS];
} Exchange;

/* Prints the line and ends the program, without waiting for its other threads. */
_Noreturn void fail(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* Gives zeroed memory, never NULL. */
void *allocate(size_t count, size_t size);

/* Gives the number in an argument, which must be at least `minimum`. */
int parse_count(const char *argument, int minimum);

/* Gives all lines of a stream, without their line feeds, and how many there are. */
Text *read_lines(FILE *stream, size_t *num_lines);
void free_lines(Text *lines, size_t num_lines);

/* Loads a SavedModel tagged "serve": argv is a program's own, the four arguments SIGNATURE_USAGE.
 * Libraries and tensors ("serving_default_text:0") are lists, separated by commas. */
Signature open_signature(char **argv);
void close_signature(Signature *signature);

/* Asks for the rows lines[0..num_rows). Threads may share a signature. */
Exchange run_signature(const Signature *signature, const Text *const *lines, int num_rows);
void free_exchange(Exchange *exchange);

#endif
