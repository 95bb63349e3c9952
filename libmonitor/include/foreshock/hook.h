/* foreshock/hook.h: what a trainer, or an adapter inside one, tells the monitor.
 *
 * Conventions, valid for every function here:
 *   1. Nothing throws, blocks, prints, aborts, allocates after set-up, or takes a lock across a copy.
 *   2. Give, don't take: a return value only says whether further description is wanted. A program must
 *      not compute anything else from it; but for foreshock_read_advice, which is there to be asked.
 *   3. Every struct starts with `size` (sizeof) and `version` (FORESHOCK_ABI_VERSION), as the caller
 *      compiled them. Both must be those of this header: a struct of another release is not read. A call
 *      described by one is counted as skipped ("unknown"); everything else is ignored.
 *   4. Pointers are borrowed for the duration of the call.
 *   5. Every function may be called from any thread, and from a forked child (where it does nothing until
 *      the child trains by itself).
 *
 * Link libforeshock.so, preload it, or use <foreshock/annotate.h>, which needs neither.
 */
#ifndef FORESHOCK_HOOK_H_
#define FORESHOCK_HOOK_H_

#include <stddef.h>
#include <stdint.h>

#define FORESHOCK_ABI_VERSION 1
#define FORESHOCK_EXPORT __attribute__((visibility("default")))

#ifdef __cplusplus
extern "C" {
#endif

/* Storage formats. The numbers are part of the ABI and of the segment. */
enum {
  FORESHOCK_DTYPE_NONE = 0,
  FORESHOCK_FP64 = 1,
  FORESHOCK_FP32 = 2,
  FORESHOCK_BF16 = 3,
  FORESHOCK_FP16 = 4,
  FORESHOCK_BOOL = 5
};

enum { FORESHOCK_FORWARD = 0, FORESHOCK_BACKWARD = 1 };

enum { FORESHOCK_DEVICE_CPU = 0, FORESHOCK_DEVICE_CUDA = 1, FORESHOCK_DEVICE_OTHER = 2 };

#define FORESHOCK_TENSOR_DIMS 4

/* A strided view. Embedded in other structs, hence frozen: it never grows. */
typedef struct foreshock_tensor {
  const void* data;                      /* NULL: absent */
  int64_t shape[FORESHOCK_TENSOR_DIMS];  /* unused trailing dimensions are 1 */
  int64_t stride[FORESHOCK_TENSOR_DIMS]; /* in elements; 0 for a broadcast dimension */
  uint32_t dtype;
  uint32_t dims;       /* 0..4 */
  int32_t device_type; /* FORESHOCK_DEVICE_... */
  int32_t device_index;
} foreshock_tensor;

/* flags of foreshock_attention_enter */
enum {
  FORESHOCK_NEEDS_GRADIENT = 1, /* the call's inputs need gradients: this process trains */
  FORESHOCK_IN_BACKWARD = 2     /* called while a backward pass runs on this thread (recomputation) */
};

/* Why a call that was to be sampled is not. The closed set; also the order of the counters in the segment. */
enum {
  FORESHOCK_SKIP_BUDGET = 0,
  FORESHOCK_SKIP_RING_FULL = 1,
  FORESHOCK_SKIP_DROPOUT = 2,
  FORESHOCK_SKIP_CAPTURE = 3,
  FORESHOCK_SKIP_NESTED = 4,
  FORESHOCK_SKIP_FP8 = 5,
  FORESHOCK_SKIP_MASK = 6,
  FORESHOCK_SKIP_LAYOUT = 7,
  FORESHOCK_SKIP_TOO_LARGE = 8,
  FORESHOCK_SKIP_OFF = 9,
  FORESHOCK_SKIP_UNKNOWN = 10,
  FORESHOCK_SKIP_DEVICE = 11,        /* its driver is absent, too old, or has refused something */
  FORESHOCK_SKIP_DEVICE_MEMORY = 12, /* no room on the device, or the segment cannot be pinned for it */
  FORESHOCK_SKIP_REASONS = 13
};

/* Which keys a query position may see under `causal`. */
enum {
  FORESHOCK_CAUSAL_NONE = 0,
  FORESHOCK_CAUSAL_TOP_LEFT = 1,    /* key j visible to query i iff j <= i */
  FORESHOCK_CAUSAL_BOTTOM_RIGHT = 2 /* iff j <= i + keys - queries */
};

/* One attention call, described after the operation returned. Shapes (batch, heads, position, head
 * dimension), whatever the strides. Query heads / kv-heads is a whole number; query head h reads kv-head
 * h / (query heads / kv-heads). */
typedef struct foreshock_attention_call {
  uint32_t size;
  uint32_t version;
  int32_t op;     /* from foreshock_register_op */
  int32_t causal; /* FORESHOCK_CAUSAL_... */
  double scale;   /* what the scores are multiplied by; never 0 */
  double dropout; /* probability; of a call with dropout only scores and log_sum_exp are judged, of its
                     backward nothing */
  foreshock_tensor query; /* (B, H, N, D) */
  foreshock_tensor key;   /* (B, KVH, M, D) */
  foreshock_tensor value; /* (B, KVH, M, DV) */
  foreshock_tensor out;   /* (B, H, N, DV) */
  foreshock_tensor
      log_sum_exp;       /* (B, H, N), natural logarithm of the row sum of exp(scaled score); may be absent */
  foreshock_tensor mask; /* broadcast to (B, H, N, M), fewer dimensions are the last ones: bool (true =
                            visible) or additive; absent: none */
  foreshock_tensor grad_out;   /* backward only, (B, H, N, DV) */
  foreshock_tensor grad_query; /* backward only, (B, H, N, D) */
  const void*
      layer_identity; /* opaque, equal for all calls of one layer (see foreshock_parameter); NULL: unknown */
  const char* layer_name; /* explicit annotation, wins over layer_identity; NULL: none */
  void* stream;        /* of CUDA tensors: the one the operation was given to, as the driver knows it (1: the
                          legacy default stream, 2: the thread's default stream). NULL: unknown; without it
                          nobody can tell when the tensors hold what they shall */
  uint64_t prepare_ns; /* what the caller spent on this description, for the monitor's own account */
  /* A packed batch: sequences of any lengths, one after the other without padding. Sequence s has the queries
     at positions query_offsets[s] .. query_offsets[s + 1] - 1 and the keys that key_offsets tells alike; it
     sees no others. The tensors above then hold the positions of all sequences and have no dimension for the
     batch: (H, N, D), (KVH, M, D), ...; log_sum_exp is (H, N), or (sequences, H, longest_query or more) with
     the rows of each sequence from 0 on. There is no mask. The offsets lie where the tensors lie: those on a
     device nobody on the host reads, so they must stay as long as the tensors. One sequence is looked at. */
  const int32_t* query_offsets; /* [sequences + 1]; NULL: not packed */
  const int32_t* key_offsets;   /* [sequences + 1] */
  int64_t sequences;
  int64_t longest_query, longest_key; /* no sequence is longer. What is to be kept of one is planned by these:
                                         much more than there is costs room */
  foreshock_tensor grad_key;          /* backward only, (B, KVH, M, D); absent: not judged */
  foreshock_tensor grad_value;        /* backward only, (B, KVH, M, DV); absent: not judged */
} foreshock_attention_call;

/* One optimizer step that has ended. */
typedef struct foreshock_step {
  uint32_t size;
  uint32_t version;
  int64_t step;         /* absolute: optimizer steps done so far, this one included; negative, or 2^62 and
                           more: unknown, count on */
  uint32_t step_source; /* FORESHOCK_STEP_... */
  uint32_t reserved;
  double loss; /* NaN-boxed absence is not used: see `given` */
  double learning_rate;
  double gradient_norm; /* before clipping */
  uint64_t batch_id;
  uint32_t given; /* FORESHOCK_GIVEN_... : which of the above are meant */
  uint32_t reserved2;
  uint64_t prepare_ns; /* what the caller spent for the monitor since the step before */
} foreshock_step;

enum { FORESHOCK_STEP_REPORTED = 1, FORESHOCK_STEP_OPTIMIZER_STATE = 2, FORESHOCK_STEP_COUNTED = 3 };

enum {
  FORESHOCK_GIVEN_LOSS = 1,
  FORESHOCK_GIVEN_LEARNING_RATE = 2,
  FORESHOCK_GIVEN_GRADIENT_NORM = 4,
  FORESHOCK_GIVEN_BATCH_ID = 8,
  /* No number: the caller has given up naming tensors and telling of their gradients and values, for good,
     since that has cost several times what may be spent, or with the next one since it failed. */
  FORESHOCK_GIVEN_UP_TENSORS = 16,
  FORESHOCK_GIVEN_UP_FAILED = 32,
  /* No number: the first step of another optimizer, after the one that made the steps so far was destroyed.
   */
  FORESHOCK_GIVEN_OTHER_TRAINING = 64
};

enum {
  FORESHOCK_LOSS_REPORTED = 1,
  FORESHOCK_LOSS_NLL = 2,
  FORESHOCK_LOSS_BACKWARD_ROOT = 3,
  FORESHOCK_LOSS_LOGGED = 4 /* as the training itself logs it, by its name */
};

/* A parameter that may own a layer of attention, or whose gradient is followed. */
typedef struct foreshock_parameter {
  uint32_t size;
  uint32_t version;
  const void* identity; /* what foreshock_attention_call.layer_identity shows for calls made from it */
  const char* name;     /* full name, e.g. "blocks.3.attention.qkv.weight" */
  const char* layer;    /* label of the layer it belongs to, e.g. "003" */
  uint64_t elements;
} foreshock_parameter;

/* The gradient of one parameter, before clipping: either its values or its sum of squares. */
typedef struct foreshock_gradient {
  uint32_t size;
  uint32_t version;
  const void* identity;    /* of the parameter */
  double sum_of_squares;   /* used when values.data is NULL */
  foreshock_tensor values; /* dense; dims 1, shape[0] = elements */
  uint64_t norm_fetched;   /* of foreshock_fetch: the norm, instead of both above; 0: none */
  /* Of values on a CUDA device, where then all of the step's are: the stream that the optimizer's work is
   * given to, as in foreshock_attention_call. Kernels on it sum the squares, and the record of the step is
   * completed when those have come. NULL: unknown, and they are left out. */
  void* stream;
} foreshock_gradient;

/* A number that the training itself logs, and already holds on the host. */
typedef struct foreshock_scalar {
  uint32_t size;
  uint32_t version;
  const char* name; /* copied: 43 bytes */
  double value;
  int64_t step; /* the step the training logs it with, in its own count; -1: none */
} foreshock_scalar;

/* A tensor of the model as this rank's optimizer holds it: all of it, or a part. Tensors with more dimensions
 * than fit have the last ones multiplied into one. */
typedef struct foreshock_weight {
  uint32_t size;
  uint32_t version;
  const char* name;                      /* the same on every rank; copied: 159 bytes */
  const char* layer;                     /* label of its layer, 31 bytes; NULL: none */
  int64_t shape[FORESHOCK_TENSOR_DIMS];  /* of the whole tensor; unused trailing dimensions are 1 */
  int64_t offset[FORESHOCK_TENSOR_DIMS]; /* where this rank's part begins in it */
  int64_t part[FORESHOCK_TENSOR_DIMS];   /* shape of the part; a 0: nothing of it is here */
  uint32_t dims;                         /* 0..4 */
  uint32_t unfollowed;                   /* why it cannot be followed, FORESHOCK_UNFOLLOWED_...; 0: it can */
} foreshock_weight;

/* One that an optimizer steps and that cannot be described is counted: it is made of several parameters (the
 * flat ones of FSDP1), where this rank's part lies in it cannot be told, or its optimizer steps at a pace of
 * its own. Of its shapes the whole one spreads the turns of the others. */
enum {
  FORESHOCK_FOLLOWED = 0,
  FORESHOCK_UNFOLLOWED_FLAT = 1,
  FORESHOCK_UNFOLLOWED_PLACEMENT = 2,
  FORESHOCK_UNFOLLOWED_PACE = 3
};

/* What lies around one of them at one end of a step. Absent tensors have data NULL, unknown numbers are NaN.
 */
typedef struct foreshock_weight_state {
  uint32_t size;
  uint32_t version;
  uint32_t number; /* place in the table of foreshock_name_weights */
  uint32_t reserved;
  foreshock_tensor parameter; /* of this rank's part; any strides */
  foreshock_tensor gradient;
  foreshock_tensor average;        /* of the gradient: exp_avg of Adam */
  foreshock_tensor square_average; /* of its square: exp_avg_sq of Adam */
  int64_t optimizer_step;          /* the optimizer's own count for this tensor; -1: unknown */
  double learning_rate, beta1, beta2, epsilon, weight_decay; /* of its group */
  /* Of tensors on a device: the stream that the optimizer's work on them is given to, as in
   * foreshock_attention_call; NULL: unknown, and they are left out. */
  void* stream;
} foreshock_weight_state;

/* FORESHOCK_ENDED_STEP is added to either for an optimizer that steps after foreshock_step_end has told the
 * step that its work belongs to. */
enum { FORESHOCK_BEFORE_STEP = 0, FORESHOCK_AFTER_STEP = 1, FORESHOCK_ENDED_STEP = 2 };

/* What this process is in the job. Fields that are negative are unknown. */
typedef struct foreshock_identity {
  uint32_t size;
  uint32_t version;
  int32_t rank, local_rank, world_size, attempt;
  int32_t data_parallel, tensor_parallel, pipeline_parallel, expert_parallel;
  const char* framework; /* "torch 2.13.0" */
} foreshock_identity;

/* How loud the loudest detector is. */
enum { FORESHOCK_QUIET = 0, FORESHOCK_WATCH = 1, FORESHOCK_WARN = 2 };

/* What the agent makes of the training: the loudest detector of any rank of this node. */
typedef struct foreshock_advice {
  uint32_t size;
  uint32_t version;
  uint32_t level;     /* FORESHOCK_QUIET, ... */
  int32_t rank;       /* whose signal it is; -1: quiet */
  int64_t since_step; /* at this level; of one warning it does not change, so a trainer acts once for each */
  int64_t from_step; /* the ranks of a node act together if none does before this step. Ranks on several nodes
                        must agree among themselves: the largest level, the largest from_step */
  uint64_t age_steps; /* steps that the agent has not seen yet. A few; it is gone if they become many, and
                         the rest is of then */
  double score;       /* 1 is where the detector begins to warn */
  char detector[32];  /* "output_error_drift", ...; "": quiet */
  char layer[32];     /* "003", ...; "": of no layer */
} foreshock_advice;

/* -- life -- */

FORESHOCK_EXPORT uint32_t foreshock_abi_version(void);

/* Nonzero while this process is monitored (armed, and switched on). */
FORESHOCK_EXPORT int foreshock_enabled(void);

/* Switches the monitor off for the rest of this process and leaves `reason` (letters, digits, '_') where the
 * agent and the launcher look for it. */
FORESHOCK_EXPORT void foreshock_off(const char* reason);

/* Rank and world are taken when told before the first step and the first attention call that needs gradients;
 * the rest is shown with the next step that ends. Told again, all of it is replaced. */
FORESHOCK_EXPORT void foreshock_describe(const foreshock_identity* identity);

/* Fills in `*advice` and returns nonzero; or returns 0 where nothing is known: the
 * process is not monitored, no agent has followed it yet, or one is writing just now. Reads a few words of
 * shared memory: may be called at every step. What to do with it, if anything, is the trainer's decision
 * alone. */
FORESHOCK_EXPORT int foreshock_read_advice(foreshock_advice* advice);

/* -- attention -- */

/* Once per operation at set-up. `pass` is FORESHOCK_FORWARD or _BACKWARD; `name` is copied (63 bytes).
 * Returns the operation's number, the same for the same name and pass, or -1 when there is no room. */
FORESHOCK_EXPORT int32_t foreshock_register_op(const char* name, uint32_t pass);

/* Before every call of a registered operation on real data (not fake, not meta, not nested in another
 * registered one). Nonzero: sample it; the caller then must end the call with exactly one of
 * foreshock_attention_leave, foreshock_attention_skip. Zero: nothing more is wanted. */
FORESHOCK_EXPORT int foreshock_attention_enter(int32_t op, uint32_t flags);

/* After an operation whose enter returned nonzero has returned. */
FORESHOCK_EXPORT void foreshock_attention_leave(const foreshock_attention_call* call);

/* Instead of leave: the operation threw (FORESHOCK_SKIP_UNKNOWN), or cannot be described. */
FORESHOCK_EXPORT void foreshock_attention_skip(int32_t op, uint32_t reason);

/* How it is known that there is attention nobody sees; the best one is kept. */
enum {
  FORESHOCK_UNSEEN_USED = 1,      /* it was called, at least while a graph was compiled */
  FORESHOCK_UNSEEN_IMPORTED = 2,  /* the module that has it was imported */
  FORESHOCK_UNSEEN_REGISTERED = 3 /* an operation with such arguments was registered */
};

/* Attention by something that no hook sees, by name (55 bytes are kept, of 8 names at most): for the summary,
 * so that what is not counted is at least known. May be called before the process is monitored. */
FORESHOCK_EXPORT void foreshock_note_unseen(const char* name, uint32_t evidence);

/* -- steps -- */

/* The end of an optimizer step. Takes effect at the next forward call outside a backward pass. */
FORESHOCK_EXPORT void foreshock_step_end(const foreshock_step* step);

/* An optimizer step that was left out because gradients were not finite (gradient scaler). */
FORESHOCK_EXPORT void foreshock_step_skipped(void);

/* The same where a number of foreshock_fetch tells it: one was left out if that is not 0. */
FORESHOCK_EXPORT void foreshock_step_skipped_if(uint64_t number);

/* From now on it is not known how many steps are left out: a gradient scaler's answer cannot be had. */
FORESHOCK_EXPORT void foreshock_skips_unseen(void);

/* The gradients of the step that ends next are not told: there are more than an adapter has room for. */
FORESHOCK_EXPORT void foreshock_gradients_too_many(void);

/* A loss value of one micro-batch. Best source wins and is kept: reported > nll > backward root. */
FORESHOCK_EXPORT void foreshock_observe_loss(double value, uint32_t source);

/* The backward root that is observed next is the loss of its micro-batch divided by this whole number (2 or
 * more). If it equals the number of the step's backward roots, the step's loss is the sum of its roots. */
FORESHOCK_EXPORT void foreshock_observe_root_divisor(double divisor);

/* The losses that were observed since the last step, or since this was last called, are those of another
 * optimizer than the one whose steps are counted. The value becomes the scalar `name` of the step that ends
 * next; on a device, where it is not known yet, it is dropped. */
FORESHOCK_EXPORT void foreshock_loss_is_of(const char* name);

/* A cross-entropy of one micro-batch, or of a piece of one, that is summed over its targets: with the weights
 * of those that count (without weights how many there are). It tells whether the backward roots of a step's
 * micro-batches are shares of its loss, to be added, or the loss of each. Where none are told, the sum of the
 * sums over that of the weights is the loss; source: nll. */
FORESHOCK_EXPORT void foreshock_observe_loss_sum(double sum, double weight);

/* Numbers that lie on a CUDA device, one element each of a floating type, all on the same device: a small
 * kernel on `stream` (as in foreshock_attention_call; the one that what makes them was given to) copies them
 * for the host, and nobody waits. Returns nonzero and fills in what each is known by, to be told what it is
 * in one of the calls that take such a number; the record of its step is completed when it has come. Zero:
 * they are not to be had, because the device is not set up (the first step), the stream is being captured, or
 * something has failed. What is of a loss is given numbers even then: foreshock_fetched may still tell it. */
enum { FORESHOCK_FETCH_LOSS = 1, FORESHOCK_FETCH_NORM = 2, FORESHOCK_FETCH_OTHER = 3 };
FORESHOCK_EXPORT int foreshock_fetch(const foreshock_tensor* values, size_t count, void* stream,
                                     uint32_t what, uint64_t* numbers);

/* As foreshock_observe_loss: of such a number, times another one (`scale` 0: none). */
FORESHOCK_EXPORT void foreshock_observe_fetched_loss(uint64_t number, uint64_t scale, uint32_t source);

/* As foreshock_observe_loss_sum: of two such numbers. */
FORESHOCK_EXPORT void foreshock_observe_fetched_loss_sum(uint64_t sum, uint64_t weight);

/* The training itself has waited for the value of this number, and holds it on the host. */
FORESHOCK_EXPORT void foreshock_fetched(uint64_t number, double value);

/* Nonzero when the step that ends now is a sampled one (then gradients are worth a pass). */
FORESHOCK_EXPORT int foreshock_step_is_sampled(void);

/* What the training logs. The record of the step that ends next carries it; of several values of one name the
 * last one counts. A process has room for 16 names, first come. Returns how many were kept. */
FORESHOCK_EXPORT int foreshock_observe_scalars(const foreshock_scalar* scalars, size_t count);

/* -- parameters -- */

/* Names, once per run and again after resharding; later entries win. May be told before the process is
 * monitored. Returns how many were kept. None at all: what was named is of other tensors now, and forgotten.
 */
FORESHOCK_EXPORT int foreshock_name_parameters(const foreshock_parameter* parameters, size_t count);

/* Gradients of the step that ends next, before clipping; call once per step with all of them. */
FORESHOCK_EXPORT void foreshock_observe_gradients(const foreshock_gradient* gradients, size_t count);

/* -- weights: how far they move -- */

/* The tensors that the optimizers of this rank step, all of them, again after resharding. Returns how many
 * are followed from now on; 0 as well while the process is not monitored, -1 if another thread is in the way:
 * to be told again at the next step. */
FORESHOCK_EXPORT int foreshock_name_weights(const foreshock_weight* weights, size_t count);

/* Whose turn it is in the step that ends next: fills in up to `room` numbers and returns how many. Asked
 * before the optimizer's work it answers for the same step as after it, until foreshock_step_end. */
FORESHOCK_EXPORT size_t foreshock_weights_due(uint32_t* numbers, size_t room);

/* Those tensors before the optimizer's work (FORESHOCK_BEFORE_STEP; may be left out: the change that the step
 * made is not known then) and after it, before foreshock_step_end but for FORESHOCK_ENDED_STEP. */
FORESHOCK_EXPORT void foreshock_observe_weights(const foreshock_weight_state* states, size_t count,
                                                uint32_t when);

#ifdef __cplusplus
}
#endif

#endif /* FORESHOCK_HOOK_H_ */
