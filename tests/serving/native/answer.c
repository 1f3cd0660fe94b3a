/* Answers every line of the standard input with a signature of a SavedModel.
 *
 *   answer MODEL_FOLDER OP_LIBRARIES INPUT_TENSORS OUTPUT_TENSORS BATCH_SIZE...
 *
 * Each row of input gives one line for each output. The batch sizes take turns; without any input
 * one empty batch is asked.
 */
#include <stdlib.h>

#include "signature.h"
#include "tensors.h"

int main(int argc, char **argv) {
  if (argc < SIGNATURE_ARGUMENTS + 2) fail("usage: %s %s BATCH_SIZE...", argv[0], SIGNATURE_USAGE);
  char **batch_sizes = argv + SIGNATURE_ARGUMENTS + 1;
  const int num_batch_sizes = argc - SIGNATURE_ARGUMENTS - 1;
  Signature signature = open_signature(argv);
  size_t num_lines, first = 0;
  Text *lines = read_lines(stdin, &num_lines);
  const Text **batch = allocate(num_lines, sizeof *batch);
  int turn = 0;
  do {
    const int batch_size = parse_count(batch_sizes[turn++ % num_batch_sizes], 1);
    int num_rows = 0;
    while (num_rows < batch_size && first < num_lines) batch[num_rows++] = &lines[first++];
    Exchange exchange = run_signature(&signature, batch, num_rows);
    for (int row = 0; row < num_rows; ++row)
      for (int output = 0; output < exchange.num_outputs; ++output)
        print_row(stdout, exchange.outputs[output], row);
    free_exchange(&exchange);
  } while (first < num_lines);
  free(batch);
  free_lines(lines, num_lines);
  close_signature(&signature);
  return 0;
}
