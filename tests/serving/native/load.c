/* Asks one SavedModel from several threads at once, in batches of random size, for some time.
 *
 *   load MODEL_FOLDER OP_LIBRARIES INPUT_TENSORS OUTPUT_TENSORS \
 *       THREADS LARGEST_BATCH WARM_UP_SECONDS SECONDS
 *
 * Every row of an answer must be what its line of the standard input got alone at the start; an
 * error or another answer ends the program with status 1. At the end it prints one JSON object.
 * Resident memory is read after the warm-up and at the end, while the threads are at work.
 */
#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "signature.h"
#include "tensors.h"

/* Latencies are counted in classes, each 1% above the one before, so that counting needs no memory
 * that grows: from a microsecond to 2,000 seconds. */
#define NUM_CLASSES 2160
#define CLASS_RATIO 1.01

typedef struct {
  const Signature *signature;
  const Text *lines;
  const Exchange *expected; /* of each line, alone */
  size_t num_lines;
  int largest_batch;
  atomic_bool is_over;
  atomic_bool is_warm; /* counted is what happens from then on */
} Load;

typedef struct {
  Load *load;
  pthread_t thread;
  uint64_t random;
  uint64_t num_requests, num_rows;
  uint64_t latencies[NUM_CLASSES];
} Worker;

static double now(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

static double resident_megabytes(void) {
  long total, resident;
  FILE *file = fopen("/proc/self/statm", "r");
  if (!file || fscanf(file, "%ld %ld", &total, &resident) != 2) fail("cannot read /proc/self/statm");
  fclose(file);
  return (double)resident * (double)sysconf(_SC_PAGESIZE) / 1e6;
}

/* Xorshift (Marsaglia 2003): each worker has its own, and the same in every run. */
static size_t draw(Worker *worker, size_t below) {
  worker->random ^= worker->random << 13;
  worker->random ^= worker->random >> 7;
  worker->random ^= worker->random << 17;
  return worker->random % below;
}

static void check_answer(const Load *load, const Exchange *answer, int row, size_t line) {
  for (int output = 0; output < answer->num_outputs; ++output) {
    const TF_Tensor *expected = load->expected[line].outputs[output];
    if (!same_row(answer->outputs[output], row, expected, 0)) {
      fprintf(stderr, "line %zu got another answer: ", line + 1);
      print_row(stderr, answer->outputs[output], row);
      fprintf(stderr, "alone it got: ");
      print_row(stderr, expected, 0);
      fail("output %d is not always the same", output);
    }
  }
}

static void *work(void *argument) {
  Worker *worker = argument;
  Load *load = worker->load;
  const size_t room = (size_t)load->largest_batch;
  size_t *chosen = allocate(room, sizeof *chosen);
  const Text **batch = allocate(room, sizeof *batch);
  while (!atomic_load(&load->is_over)) {
    const int num_rows = 1 + (int)draw(worker, room);
    for (int row = 0; row < num_rows; ++row) {
      chosen[row] = draw(worker, load->num_lines);
      batch[row] = &load->lines[chosen[row]];
    }
    const double start = now();
    Exchange answer = run_signature(load->signature, batch, num_rows);
    const double microseconds = fmax(1e6 * (now() - start), 1);
    for (int row = 0; row < num_rows; ++row) check_answer(load, &answer, row, chosen[row]);
    free_exchange(&answer);
    if (!atomic_load(&load->is_warm)) continue;
    const int class = (int)(log(microseconds) / log(CLASS_RATIO));
    ++worker->latencies[class < NUM_CLASSES ? class : NUM_CLASSES - 1];
    ++worker->num_requests;
    worker->num_rows += (uint64_t)num_rows;
  }
  free(batch);
  free(chosen);
  return NULL;
}

/* Gives the latency in milliseconds that a share of all requests did not exceed. */
static double quantile(const Worker *total, double share) {
  uint64_t seen = 0;
  int class = 0;
  while (class < NUM_CLASSES - 1 &&
         (double)(seen += total->latencies[class]) < share * (double)total->num_requests)
    ++class;
  return pow(CLASS_RATIO, class + 1) / 1e3;
}

static void pause_for(int seconds) {
  struct timespec time = {.tv_sec = seconds};
  nanosleep(&time, NULL);
}

/* Starts the workers, waits, and prints what they did. */
static void run_load(Load *load, int num_workers, int warm_up_seconds, int seconds) {
  Worker *workers = allocate((size_t)num_workers, sizeof *workers), total = {0};
  for (int index = 0; index < num_workers; ++index) {
    workers[index].load = load;
    workers[index].random = 0x9E3779B97F4A7C15u * (uint64_t)(index + 1);
    if (pthread_create(&workers[index].thread, NULL, work, &workers[index]))
      fail("cannot start a thread");
  }
  pause_for(warm_up_seconds);
  const double memory_at_start = resident_megabytes(), start = now();
  atomic_store(&load->is_warm, true);
  pause_for(seconds);
  const double memory_at_end = resident_megabytes();
  atomic_store(&load->is_over, true);
  for (int index = 0; index < num_workers; ++index) {
    pthread_join(workers[index].thread, NULL);
    total.num_requests += workers[index].num_requests;
    total.num_rows += workers[index].num_rows;
    for (int class = 0; class < NUM_CLASSES; ++class)
      total.latencies[class] += workers[index].latencies[class];
  }
  if (!total.num_requests) fail("no request was answered in %d seconds", seconds);
  printf("{\"requests\": %llu, \"rows\": %llu, \"rows_per_second\": %.1f, "
         "\"p50_ms\": %.2f, \"p99_ms\": %.2f, \"start_mb\": %.1f, \"end_mb\": %.1f}\n",
         (unsigned long long)total.num_requests, (unsigned long long)total.num_rows,
         (double)total.num_rows / (now() - start), quantile(&total, 0.5), quantile(&total, 0.99),
         memory_at_start, memory_at_end);
  free(workers);
}

int main(int argc, char **argv) {
  if (argc != SIGNATURE_ARGUMENTS + 5)
    fail("usage: %s %s THREADS LARGEST_BATCH WARM_UP_SECONDS SECONDS", argv[0], SIGNATURE_USAGE);
  char **counts = argv + SIGNATURE_ARGUMENTS + 1;
  const int num_workers = parse_count(counts[0], 1), largest_batch = parse_count(counts[1], 1);
  const int warm_up_seconds = parse_count(counts[2], 0), seconds = parse_count(counts[3], 1);
  Signature signature = open_signature(argv);
  Load load = {.signature = &signature, .largest_batch = largest_batch};
  Text *lines = read_lines(stdin, &load.num_lines);
  if (!load.num_lines) fail("expected lines on the standard input, got none");
  Exchange *expected = allocate(load.num_lines, sizeof *expected);
  for (size_t line = 0; line < load.num_lines; ++line) {
    const Text *alone = &lines[line];
    expected[line] = run_signature(&signature, &alone, 1);
  }
  load.lines = lines;
  load.expected = expected;
  run_load(&load, num_workers, warm_up_seconds, seconds);
  for (size_t line = 0; line < load.num_lines; ++line) free_exchange(&expected[line]);
  free(expected);
  free_lines(lines, load.num_lines);
  close_signature(&signature);
  return 0;
}
