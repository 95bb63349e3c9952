/* foreshock/hook.h: the functions through which a trainer, or an adapter inside one, reports to the monitor
 * (libforeshock.so, which samples the trainer and passes the data to the agent, another process).
 *
 * Conventions, valid for every function here:
 *   1. Nothing throws, blocks, prints, aborts, allocates after set-up, or takes a lock across a copy.
 *   2. A return value reports what the monitor needs next, how much it kept, or a number that it assigned.
 *      The training must not depend on it. Only the result of foreshock_read_advice is meant to be acted on.
 *   3. Every struct but foreshock_tensor starts with `size` (sizeof) and `version` (FORESHOCK_ABI_VERSION),
 *      as the caller compiled them. If either differs from this header, the struct is not read. An attention
 *      call is then counted as skipped ("unknown"); any other call is ignored.
 *   4. Pointers are borrowed for the duration of the call.
 *   5. Every function may be called from any thread, and from a forked child. In the child, it does nothing
 *      until the child itself trains.
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

/* A strided view. It is embedded in other structs, so it never gets new fields. */
typedef struct foreshock_tensor {
  const void* data;                      /* NULL: absent */
  int64_t shape[FORESHOCK_TENSOR_DIMS];  /* unused trailing dimensions are 1 */
  int64_t stride[FORESHOCK_TENSOR_DIMS]; /* in elements; 0 for a broadcast dimension */
  uint32_t dtype;
  uint32_t dims;       /* 0..4 */
  int32_t device_type; /* FORESHOCK_DEVICE_... */
  int32_t device_index;
} foreshock_tensor;

/* Flags of foreshock_attention_enter. */
enum {
  FORESHOCK_NEEDS_GRADIENT = 1, /* the call's inputs need gradients: this process trains */
  FORESHOCK_IN_BACKWARD = 2     /* called while a backward pass runs on this thread (recomputation) */
};

/* Reasons to skip a call that was to be sampled, in the order of the counters in the segment. */
enum {
  FORESHOCK_SKIP_BUDGET = 0,         /* the monitor has used up its share of the trainer's time */
  FORESHOCK_SKIP_RING_FULL = 1,      /* the agent or a device still uses all the memory for samples */
  FORESHOCK_SKIP_DROPOUT = 2,        /* dropout, in a backward call */
  FORESHOCK_SKIP_CAPTURE = 3,        /* the stream is being captured into a CUDA graph */
  FORESHOCK_SKIP_NESTED = 4,         /* inside of another registered operation */
  FORESHOCK_SKIP_FP8 = 5,            /* fp8 or fewer bits */
  FORESHOCK_SKIP_MASK = 6,           /* an unsupported mask or window */
  FORESHOCK_SKIP_LAYOUT = 7,         /* unsupported shapes, strides or formats */
  FORESHOCK_SKIP_TOO_LARGE = 8,      /* even one position exceeds the memory for a sample */
  FORESHOCK_SKIP_OFF = 9,            /* the monitor is switched off, or has no memory for samples */
  FORESHOCK_SKIP_UNKNOWN = 10,       /* the call threw, or its arguments are not known */
  FORESHOCK_SKIP_DEVICE = 11,        /* no CUDA device, or its driver is absent, too old, or failed */
  FORESHOCK_SKIP_DEVICE_MEMORY = 12, /* no room on the device, or the segment cannot be pinned for it */
  FORESHOCK_SKIP_SET_UP = 13,        /* the device is set up at the end of the step */
  FORESHOCK_SKIP_REASONS = 14
};

/* Values of `causal` and `window`: which keys a query position may see. */
enum {
  FORESHOCK_CAUSAL_NONE = 0,        /* all keys */
  FORESHOCK_CAUSAL_TOP_LEFT = 1,    /* query i sees key j if j <= i */
  FORESHOCK_CAUSAL_BOTTOM_RIGHT = 2 /* query i sees key j if j <= i + keys - queries */
};

/* One attention call, described after the operation returned. Shapes are (batch, heads, position, head
 * dimension), whatever the strides: B, H query heads, KVH kv-heads, N queries, M keys, D and DV elements. H /
 * KVH is a whole number, and query head h reads kv-head h / (H / KVH). */
typedef struct foreshock_attention_call {
  uint32_t size;
  uint32_t version;
  int32_t op;     /* from foreshock_register_op */
  int32_t causal; /* FORESHOCK_CAUSAL_... */
  double scale;   /* factor of the scores; never 0 */
  double dropout; /* probability. If not 0, and `kept` is absent, only scores and log_sum_exp of a forward
                     call are checked, and backward calls are not checked */
  foreshock_tensor query;       /* (B, H, N, D) */
  foreshock_tensor key;         /* (B, KVH, M, D) */
  foreshock_tensor value;       /* (B, KVH, M, DV) */
  foreshock_tensor out;         /* (B, H, N, DV) */
  foreshock_tensor log_sum_exp; /* (B, H, N), ln of the row sum of exp(scaled score); may be absent */
  foreshock_tensor mask; /* broadcast to (B, H, N, M), aligned to the last dimensions: bool (true = visible)
                            or added to the scaled scores; absent: no mask */
  foreshock_tensor grad_out;   /* backward only, (B, H, N, DV) */
  foreshock_tensor grad_query; /* backward only, (B, H, N, D) */
  const void* layer_identity;  /* foreshock_parameter.identity of the layer, opaque; NULL: unknown */
  const char* layer_name;      /* the program's name of the layer, preferred to layer_identity; NULL: none */
  void* stream;        /* CUDA tensors only: the CUstream on which the operation was launched (1: the legacy
                          default stream, 2: the thread's default stream). NULL: unknown; the call is then
                          not sampled, since the monitor could not order its copy after the operation */
  uint64_t prepare_ns; /* time the caller spent on this description; counted as overhead of the monitor */
  /* A packed batch: sequences of any lengths, one after the other without padding. Sequence s has the queries
     at positions query_offsets[s] .. query_offsets[s + 1] - 1 and the keys at positions key_offsets[s] ..
     key_offsets[s + 1] - 1. Its queries see no other keys. The tensors above then hold the positions of all
     sequences and have no batch dimension: (H, N, D), (KVH, M, D), ...; log_sum_exp is (H, N), or (sequences,
     H, longest_query or more) with the rows of each sequence from 0 on. A packed call has no mask. The
     offsets must be on the same device as the tensors and stay valid as long. Offsets on a device are read
     there, not on the host. The monitor samples one sequence of the call. */
  const int32_t* query_offsets; /* [sequences + 1]; NULL: not packed */
  const int32_t* key_offsets;   /* [sequences + 1] */
  int64_t sequences;
  int64_t longest_query, longest_key; /* upper bounds of a sequence's length. They determine the
                                         memory of a sample, so a bound that is far too large wastes memory */
  foreshock_tensor grad_key;          /* backward only, (B, KVH, M, D); absent: not checked */
  foreshock_tensor grad_value;        /* backward only, (B, KVH, M, DV); absent: not checked */
  /* What dropout has kept of the attention weights, broadcast to (B, H, N, M) as a mask is: bool or any
     storage format. Where not 0, the weight was multiplied by 1 / (1 - dropout); elsewhere it became 0.
     Absent: not known. Read only if dropout is above 0 and below 1 and the call is not packed. */
  foreshock_tensor kept;
  double soft_cap; /* above 0: the score is soft_cap * tanh(scale * product / soft_cap), to which the mask
                      is added, and log_sum_exp is that of these scores; 0: the score is scale * product */
  foreshock_tensor weights; /* (B, H, N, M), the attention weights after dropout, if the operation returns
                               them. Read where log_sum_exp is absent and the tensors are on the host */
  /* A sliding window. `window`: 0, no window; FORESHOCK_CAUSAL_TOP_LEFT or _BOTTOM_RIGHT, the alignment:
     query i has the own key i or i + M - N (of a packed call: lengths of its sequence). It sees the keys from
     window_left before to window_right after its own key; -1: all keys of that side. If `causal` is set too,
     it must have the same alignment, and no key after the own key is seen. If the window hides all keys from
     a query, the call is skipped ("mask"). */
  int32_t window;
  int32_t reserved;
  int64_t window_left, window_right; /* -1 or more; read only with a window */
} foreshock_attention_call;

/* One optimizer step that has ended. */
typedef struct foreshock_step {
  uint32_t size;
  uint32_t version;
  int64_t step;         /* absolute: number of optimizer steps so far, including this one. If it is negative
                           or at least 2^62, the monitor continues its own count */
  uint32_t step_source; /* FORESHOCK_STEP_... */
  uint32_t reserved;
  double loss; /* read only if `given` has FORESHOCK_GIVEN_LOSS; may be NaN */
  double learning_rate;
  double gradient_norm; /* before clipping */
  uint64_t batch_id;    /* the trainer's own number of the batch */
  uint32_t given; /* FORESHOCK_GIVEN_...: which of loss, learning_rate, gradient_norm and batch_id are set */
  uint32_t reserved2;
  uint64_t prepare_ns; /* time the caller spent for the monitor since the previous step */
} foreshock_step;

/* Source of foreshock_step.step: the program itself, the optimizer's state, or a count of detected steps. */
enum { FORESHOCK_STEP_REPORTED = 1, FORESHOCK_STEP_OPTIMIZER_STATE = 2, FORESHOCK_STEP_COUNTED = 3 };

/* Flags of foreshock_step.given. The first four: a field of the step is set. The others: an event. */
enum {
  FORESHOCK_GIVEN_LOSS = 1,
  FORESHOCK_GIVEN_LEARNING_RATE = 2,
  FORESHOCK_GIVEN_GRADIENT_NORM = 4,
  FORESHOCK_GIVEN_BATCH_ID = 8,
  /* For the rest of the process the caller reports no names, gradients and values of tensors, because this
     cost several times the allowed overhead. */
  FORESHOCK_GIVEN_UP_TENSORS = 16,
  /* Set together with FORESHOCK_GIVEN_UP_TENSORS if the reason is instead that naming the tensors failed. */
  FORESHOCK_GIVEN_UP_FAILED = 32,
  /* This is the first step of another optimizer; the optimizer of the earlier steps was destroyed. */
  FORESHOCK_GIVEN_OTHER_TRAINING = 64
};

/* Sources of a loss. A backward root is the tensor on which the program calls backward(). */
enum {
  FORESHOCK_LOSS_REPORTED = 1,      /* by the program itself */
  FORESHOCK_LOSS_NLL = 2,           /* the result of a cross-entropy */
  FORESHOCK_LOSS_BACKWARD_ROOT = 3, /* the value of a backward root */
  FORESHOCK_LOSS_LOGGED = 4         /* the training itself logs a scalar with the name of a loss */
};

/* A parameter: it may identify an attention layer, and its gradient may be reported. */
typedef struct foreshock_parameter {
  uint32_t size;
  uint32_t version;
  const void* identity; /* equals foreshock_attention_call.layer_identity of the calls that use it */
  const char* name;     /* full name, e.g. "blocks.3.attention.qkv.weight" */
  const char* layer;    /* label of the parameter's layer, e.g. "003" */
  uint64_t elements;
} foreshock_parameter;

/* A module of the model that mixes positions: attention, or another mixer (linear attention, state space). */
typedef struct foreshock_mixer {
  uint32_t size;
  uint32_t version;
  const char* layer;   /* label of the parameters that compute its query, e.g. "003"; NULL: unknown */
  const char* name;    /* class of the module */
  uint32_t kind;       /* FORESHOCK_MIXER_... */
  uint32_t is_trained; /* nonzero: a parameter of the module needs a gradient */
} foreshock_mixer;

enum { FORESHOCK_MIXER_ATTENTION = 1, FORESHOCK_MIXER_OTHER = 2 };

/* The gradient of one parameter, before clipping. It is given as values, as a sum of squares, or as a norm
 * that foreshock_fetch copies from a device. */
typedef struct foreshock_gradient {
  uint32_t size;
  uint32_t version;
  const void* identity;    /* foreshock_parameter.identity */
  double sum_of_squares;   /* used when values.data is NULL */
  foreshock_tensor values; /* dense; dims 1, shape[0] = elements */
  uint64_t norm_fetched; /* foreshock_fetch's number of the norm, which replaces both fields above; 0: none */
  /* Values on a CUDA device only: the stream on which the optimizer's work is launched, as in
   * foreshock_attention_call; all gradients of the step must then be on that device and have that stream. The
   * monitor launches kernels on it that sum the squares, and completes the record of the step when the sums
   * arrive. NULL: unknown; the gradients of the step are then left out. */
  void* stream;
} foreshock_gradient;

/* A number that the training itself logs and that is already on the host. */
typedef struct foreshock_scalar {
  uint32_t size;
  uint32_t version;
  const char* name; /* copied: 43 bytes */
  double value;
  int64_t step; /* the step number with which the training logs the value; -1: none */
} foreshock_scalar;

/* A model tensor of which this rank's optimizer holds all or a part. A tensor with more than
 * FORESHOCK_TENSOR_DIMS dimensions is described with its last dimensions multiplied into one. */
typedef struct foreshock_weight {
  uint32_t size;
  uint32_t version;
  const char* name;                      /* must be the same on every rank; copied: 159 bytes */
  const char* layer;                     /* label of the tensor's layer; copied: 31 bytes; NULL: none */
  int64_t shape[FORESHOCK_TENSOR_DIMS];  /* of the whole tensor; unused trailing dimensions are 1 */
  int64_t offset[FORESHOCK_TENSOR_DIMS]; /* index in the whole tensor at which this rank's part begins */
  int64_t part[FORESHOCK_TENSOR_DIMS];   /* shape of this rank's part; any 0: this rank has no part */
  uint32_t dims;                         /* 0..4 */
  uint32_t unfollowed; /* FORESHOCK_FOLLOWED, or the reason why the tensor cannot be measured */
} foreshock_weight;

/* Values of `unfollowed`. A tensor that cannot be measured is only counted, but must have a `shape`: the
 * sizes of all tensors determine in which step each tensor is measured, the same step on all ranks. */
enum {
  FORESHOCK_FOLLOWED = 0,
  FORESHOCK_UNFOLLOWED_FLAT = 1,      /* it consists of several parameters (flat parameters of FSDP1) */
  FORESHOCK_UNFOLLOWED_PLACEMENT = 2, /* the place of this rank's part in the whole tensor is unknown */
  FORESHOCK_UNFOLLOWED_PACE = 3       /* its optimizer does not step once per step of the training */
};

/* Whether the optimizer had a gradient for a tensor. ABSENT: the parameter requires one and has none. */
enum {
  FORESHOCK_GRADIENT_UNKNOWN = 0,
  FORESHOCK_GRADIENT_PRESENT = 1,
  FORESHOCK_GRADIENT_ABSENT = 2,
  FORESHOCK_GRADIENT_NOT_REQUIRED = 3
};

/* A weight tensor and its optimizer state, before or after the optimizer's work. Absent tensors have data
 * NULL, unknown numbers are NaN. */
typedef struct foreshock_weight_state {
  uint32_t size;
  uint32_t version;
  uint32_t number;            /* index in the array given to foreshock_name_weights */
  uint32_t gradient_state;    /* FORESHOCK_GRADIENT_... */
  foreshock_tensor parameter; /* this rank's part; any strides */
  foreshock_tensor gradient;
  foreshock_tensor average;        /* running mean of the gradient: exp_avg of Adam */
  foreshock_tensor square_average; /* running mean of the squared gradient: exp_avg_sq of Adam */
  int64_t optimizer_step;          /* the optimizer's own count for this tensor; -1: unknown */
  double learning_rate, beta1, beta2, epsilon, weight_decay; /* of the parameter group */
  /* Tensors on a device only: the stream on which the optimizer's work is launched, as in
   * foreshock_attention_call. NULL: unknown; the tensor is then left out. */
  void* stream;
} foreshock_weight_state;

/* A linear sketch of a tensor: its inner products with four vectors of pseudo-random signs, and the norm of
 * the elements that were read. Of a sum of tensors, `norm` is the sum of their norms. */
typedef struct foreshock_sketch {
  double products[4];
  double norm;
} foreshock_sketch;

/* What one look saw of the gradient of a parameter in the step that ends next. Sketches of absent tensors are
 * 0, of tensors that cannot be read NaN. */
typedef struct foreshock_gradient_look {
  uint32_t size;
  uint32_t version;
  uint32_t number;         /* index in the array given to foreshock_name_weights */
  uint32_t dtype;          /* format of the gradient */
  uint32_t parameters;     /* parameters of this look */
  uint32_t contributions;  /* how often backward passes have added to the gradient */
  uint32_t is_whole;       /* 1: all contributions were seen */
  uint32_t mesh;           /* ranks with the same number, other than 0, hold copies of equal parts; 1: all */
  foreshock_sketch local;  /* sum of the contributions */
  foreshock_sketch last;   /* the last of them */
  foreshock_sketch before; /* the gradient that was left from earlier steps */
  foreshock_sketch used;   /* the gradient with which the optimizer's step begins */
  foreshock_sketch value;  /* the parameter */
} foreshock_gradient_look;

/* Time of a call of foreshock_observe_weights. Add FORESHOCK_ENDED_STEP to either value if the optimizer
 * works after foreshock_step_end has already reported the step that the work belongs to. */
enum { FORESHOCK_BEFORE_STEP = 0, FORESHOCK_AFTER_STEP = 1, FORESHOCK_ENDED_STEP = 2 };

/* The place of this process in the job. A negative field is unknown. */
typedef struct foreshock_identity {
  uint32_t size;
  uint32_t version;
  int32_t rank, local_rank, world_size, attempt;
  int32_t data_parallel, tensor_parallel, pipeline_parallel, expert_parallel;
  const char* framework; /* "torch 2.13.0" */
} foreshock_identity;

/* The levels of a detector. */
enum { FORESHOCK_QUIET = 0, FORESHOCK_WATCH = 1, FORESHOCK_WARN = 2 };

/* The agent's view of the training: the detector with the highest level among all ranks of this node. */
typedef struct foreshock_advice {
  uint32_t size;
  uint32_t version;
  uint32_t level;     /* FORESHOCK_QUIET, ... */
  int32_t rank;       /* the rank whose detector this is; -1: quiet */
  int64_t since_step; /* first step of this level. It stays the same during one warning, so a trainer can
                         compare it in order to act once per warning */
  int64_t from_step; /* the ranks of a node act in the same step if each waits for this step. Ranks on several
                        nodes must agree among themselves: on the largest level and the largest from_step */
  uint64_t age_steps; /* number of steps that this process has ended and the agent has not read yet.
                         Usually a few. If it is large, the agent has stopped, and the other fields are at
                         least that many steps old */
  double score;       /* 1: the detector begins to warn */
  char detector[32];  /* "output_error_drift", ...; "": quiet */
  char layer[32];     /* "003", ...; "": the signal belongs to no layer */
} foreshock_advice;

/* -- process -- */

FORESHOCK_EXPORT uint32_t foreshock_abi_version(void);

/* Nonzero while this process is monitored: its segment exists, and sampling is switched on. */
FORESHOCK_EXPORT int foreshock_enabled(void);

/* Switches the monitor off in this process. `reason` (letters, digits, '_'): printed by the launcher. */
FORESHOCK_EXPORT void foreshock_off(const char* reason);

/* Loads the adapter for the torch in this process: the library that hooks torch's attention. Programs linked
 * with LibTorch need no call, since libforeshock.so does this when it is loaded. A program that loads
 * LibTorch with dlopen must call it afterwards. Returns nonzero if torch's attention is hooked; 0 if there is
 * no torch, if the process is not to be monitored, or if it failed, which the summary then reports. Not for
 * hot paths. */
FORESHOCK_EXPORT int foreshock_load_adapter(void);

/* Describes the place of this process in the job. rank, local_rank, world_size and attempt are accepted only
 * before the first step and before the first attention call that needs gradients. The other fields are
 * published when the next step ends; a later call replaces all of them. */
FORESHOCK_EXPORT void foreshock_describe(const foreshock_identity* identity);

/* Fills in `*advice` and returns nonzero. Returns 0 if there is no advice: the process is not monitored, no
 * agent has followed it yet, or the agent is writing at this moment. Reads a file by pread() a few times, so
 * it may be called at every step. The trainer decides whether to act on the advice. */
FORESHOCK_EXPORT int foreshock_read_advice(foreshock_advice* advice);

/* -- attention -- */

/* Registers an operation, at set-up. `pass` is FORESHOCK_FORWARD or _BACKWARD; `name` is copied (63 bytes).
 * Returns the operation's number, the same for the same name and pass; -1: the table is full. */
FORESHOCK_EXPORT int32_t foreshock_register_op(const char* name, uint32_t pass);

/* Must precede every call of a registered operation on real data (not fake, not meta, not nested in another
 * registered operation). Nonzero: the call is to be sampled, and the caller must end it with exactly one of
 * foreshock_attention_leave and foreshock_attention_skip. Zero: the call needs neither. */
FORESHOCK_EXPORT int foreshock_attention_enter(int32_t op, uint32_t flags);

/* Describes a call for which foreshock_attention_enter returned nonzero, after the operation has returned. */
FORESHOCK_EXPORT void foreshock_attention_leave(const foreshock_attention_call* call);

/* Replaces foreshock_attention_leave if the operation threw (FORESHOCK_SKIP_UNKNOWN) or is not described. */
FORESHOCK_EXPORT void foreshock_attention_skip(int32_t op, uint32_t reason);

/* Evidence that the process has attention which no hook sees. The smallest number for a name is kept. */
enum {
  FORESHOCK_UNSEEN_USED = 1,    /* it was called, at least while a graph was compiled */
  FORESHOCK_UNSEEN_IMPORTED = 2 /* its module was imported */
};

/* Names an attention implementation that no hook sees, so that the summary can list what is not counted.
 * Keeps 55 bytes of each name and at most 8 names. May be called before the process is monitored. */
FORESHOCK_EXPORT void foreshock_note_unseen(const char* name, uint32_t evidence);

/* -- steps -- */

/* Reports the end of an optimizer step. The next step begins with the next forward call that is not part of a
 * backward pass. */
FORESHOCK_EXPORT void foreshock_step_end(const foreshock_step* step);

/* Reports an optimizer step that a gradient scaler skipped because gradients were not finite. */
FORESHOCK_EXPORT void foreshock_step_skipped(void);

/* Reports an optimizer step that was skipped if the value with this number (foreshock_fetch) is not 0. */
FORESHOCK_EXPORT void foreshock_step_skipped_if(uint64_t number);

/* Marks the count of skipped steps as unknown from now on: the gradient scaler's result cannot be read. */
FORESHOCK_EXPORT void foreshock_skips_unseen(void);

/* Marks the gradients of the step that ends next as not reported: they exceed the adapter's capacity. */
FORESHOCK_EXPORT void foreshock_gradients_too_many(void);

/* Reports a loss value of one micro-batch. One source is chosen for the run, at the first finite backward
 * root: nll (the result of a cross-entropy), if exactly one nll was observed since the previous root and this
 * root equals the nll, up to a whole divisor (accumulation) and a power of two (gradient scaler); otherwise,
 * e.g. with label smoothing, the backward roots. If a step with an nll ends before the first root, nll is
 * chosen. Until the choice, logged values are used. After a value with FORESHOCK_LOSS_REPORTED, all values
 * with other sources are ignored. */
FORESHOCK_EXPORT void foreshock_observe_loss(double value, uint32_t source);

/* Reports that the program divided the loss of a micro-batch by `divisor` (a whole number, 2 or more) before
 * it called backward() on it, and that this backward root is observed next. If the step has `divisor`
 * backward roots, its loss is their sum. 1: no gradient scaler multiplies that root, so it is the loss even
 * if it is not finite. */
FORESHOCK_EXPORT void foreshock_observe_root_divisor(double divisor);

/* Reports that the losses observed since the last step, or since the last call of this function, belong to
 * another optimizer than the one whose steps are counted. Their value becomes the scalar `name` of the step
 * that ends next; a value that is still on a device is dropped. */
FORESHOCK_EXPORT void foreshock_loss_is_of(const char* name);

/* Reports the cross-entropy of a micro-batch, or of a piece of one, as the sum over its targets. `weight` is
 * the sum of the targets' weights (without weights: the number of targets that count). The monitor decides
 * from both whether the backward roots of a step's micro-batches are added or averaged. If a step with
 * neither nll nor backward roots ends before a source is chosen, the loss is from then on the total of the
 * sums divided by the total of the weights, and its source is nll. */
FORESHOCK_EXPORT void foreshock_observe_loss_sum(double sum, double weight);

/* Copies values from a CUDA device to the host without waiting. Each of the `count` tensors has one element
 * of a floating type, and all are on the same device. A small kernel copies them on `stream`, which must be
 * the stream of the work that computes them (as in foreshock_attention_call). Returns nonzero and fills in
 * one number per value, to be passed to a function below that takes one; the record of the step is completed
 * when the values have arrived. Returns 0 if the values cannot be copied: the device is not set up yet (first
 * step), the stream is being captured, or something failed. `what` is the use of the values. For a loss,
 * numbers are returned even if the copy fails, because foreshock_fetched may still supply the value; the
 * result is 0 only if the process is unmonitored, the trainer reports its loss, or the tensors are wrong. */
enum { FORESHOCK_FETCH_LOSS = 1, FORESHOCK_FETCH_NORM = 2, FORESHOCK_FETCH_OTHER = 3 };
FORESHOCK_EXPORT int foreshock_fetch(const foreshock_tensor* values, size_t count, void* stream,
                                     uint32_t what, uint64_t* numbers);

/* Does the same as foreshock_observe_loss. The loss is the value behind `number` times the value behind
 * `scale` (0: no scale), both numbers from foreshock_fetch. */
FORESHOCK_EXPORT void foreshock_observe_fetched_loss(uint64_t number, uint64_t scale, uint32_t source);

/* Does the same as foreshock_observe_loss_sum; `sum` and `weight` are numbers from foreshock_fetch. */
FORESHOCK_EXPORT void foreshock_observe_fetched_loss_sum(uint64_t sum, uint64_t weight);

/* Supplies the value behind `number`, after the training itself has waited for it and read it on the host. */
FORESHOCK_EXPORT void foreshock_fetched(uint64_t number, double value);

/* Nonzero if the step that ends next is sampled. Gradients need to be read only in such a step. */
FORESHOCK_EXPORT int foreshock_step_is_sampled(void);

/* Reports numbers that the training logs, for the record of the step that ends next. Of several values with
 * one name the last is kept. Values are dropped if their name is not among the first 16 names of the process.
 * Returns how many values were kept. */
FORESHOCK_EXPORT int foreshock_observe_scalars(const foreshock_scalar* scalars, size_t count);

/* -- parameters -- */

/* Names parameters, once per run and again after resharding; a later entry replaces an earlier one with the
 * same identity. May be called before the process is monitored. Returns how many names were kept. A call with
 * `count` 0 drops all names: necessary if the identities now belong to other tensors. */
FORESHOCK_EXPORT int foreshock_name_parameters(const foreshock_parameter* parameters, size_t count);

/* Reports all attention modules and other mixers of the model, so that the verdict counts the layers that
 * exist and not only those whose calls were seen. Replaces an earlier report. May be called before the
 * process is monitored. `count` 0: the model has none. Without a call, the layers with attention are unknown.
 * Returns how many modules were kept, or -1 if another thread is using the table: call again at the next
 * step. */
FORESHOCK_EXPORT int foreshock_name_mixers(const foreshock_mixer* mixers, size_t count);

/* Reports all gradients of the step that ends next, before clipping, in one call. */
FORESHOCK_EXPORT void foreshock_observe_gradients(const foreshock_gradient* gradients, size_t count);

/* -- weights -- */

/* Describes all tensors that this rank's optimizers update; must be repeated after resharding. Returns the
 * number of known tensors, also those that cannot be measured: 0 while the process is not monitored, and -1
 * if another thread is using the table, in which case the caller must repeat the call at the next step. */
FORESHOCK_EXPORT int foreshock_name_weights(const foreshock_weight* weights, size_t count);

/* Fills in the numbers (foreshock_weight_state.number) of the tensors to be measured in the step that ends
 * next, at most `room` of them, and returns how many. Until foreshock_step_end, calls before and after the
 * optimizer's work return the tensors of the same step. */
FORESHOCK_EXPORT size_t foreshock_weights_due(uint32_t* numbers, size_t room);

/* Reports the tensors that are due: with FORESHOCK_BEFORE_STEP before the optimizer's work (this call is
 * optional; without it the change made by the step is unknown), and with FORESHOCK_AFTER_STEP after it. Both
 * must precede foreshock_step_end unless `when` has FORESHOCK_ENDED_STEP. */
FORESHOCK_EXPORT void foreshock_observe_weights(const foreshock_weight_state* states, size_t count,
                                                uint32_t when);

/* Adds the sketch of a tensor in host memory to `sketch`. The signs follow from `seed`, which must be the
 * same for one parameter on all ranks, and from the index of each element. Of large tensors, some elements
 * are read, the same ones in all tensors of one size. Returns 0, and changes nothing, if the tensor cannot be
 * read. If the tensor is a part of one with `whole` elements, which begins at its element `first`, the
 * sketches of the parts add up to that of the whole; else `whole` is 0. */
FORESHOCK_EXPORT int foreshock_add_sketch(const foreshock_tensor* tensor, uint64_t seed, int64_t first,
                                          int64_t whole, foreshock_sketch* sketch);

/* Reports a look at gradients, before the optimizer's work. */
FORESHOCK_EXPORT void foreshock_observe_gradient_looks(const foreshock_gradient_look* looks, size_t count);

/* -- CUDA graphs: their launches call no hook -- */

/* Reports that the capture of a CUDA graph begins. */
FORESHOCK_EXPORT void foreshock_graph_begins(void);

/* Reports that a capture has ended, also if it has failed. Sets calls[0] and calls[1] to the forward and
 * backward attention calls in the graph, and returns nonzero. Returns 0 if they are unknown, since captures
 * overlapped. */
FORESHOCK_EXPORT int foreshock_graph_ends(uint64_t* calls);

/* Reports that a graph was launched. `calls`: as from foreshock_graph_ends; NULL: unknown. */
FORESHOCK_EXPORT void foreshock_graph_launched(const uint64_t* calls);

#ifdef __cplusplus
}
#endif

#endif /* FORESHOCK_HOOK_H_ */
