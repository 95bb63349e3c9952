// Handles the optimizer hooks of quiet steps in C++, because the Python code for them would cost more time. A
// step is quiet if the core (libforeshock.so) samples no attention call in it, and if the helper (the Python
// package foreshock_torch) already has all optimizers and the names of their tensors. The helper handles the
// hooks of other steps (clock.py). It also limits how many steps may be quiet, and reads how many were. One
// optimizer is the clock: the ends of its steps are the ticks. All functions need the interpreter lock.
// Most time of a quiet step is spent on waiting for memory that the training has evicted from the caches. So
// the functions of a quiet step, here and in the core, have [[gnu::hot]]: the linker puts them side by side.
#ifndef FORESHOCK_INTEGRATIONS_TORCH_QUIET_STEPS_H_
#define FORESHOCK_INTEGRATIONS_TORCH_QUIET_STEPS_H_

#include <ATen/PythonTorchFunctionTLS.h>
#include <c10/core/impl/TorchDispatchModeTLS.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <new>
#include <optional>
#include <utility>
#include <vector>

#include "attention_paths.h"
#include "clock.h"
#include "dispatch.h"
#include "gradients.h"
#include "python_objects.h"
#include "tensor_view.h"

namespace foreshock::adapter {

// Hides attribute reads of tensors from the trainer's torch function modes and tensor subclasses.
class NoTorchFunction {
 public:
  NoTorchFunction() : before_(State::get_disabled_state()) {
    State::set_disabled_state(at::impl::TorchFunctionDisabledState::ALL_DISABLED);
  }
  ~NoTorchFunction() { State::set_disabled_state(before_); }
  NoTorchFunction(const NoTorchFunction&) = delete;
  NoTorchFunction& operator=(const NoTorchFunction&) = delete;

 private:
  using State = at::impl::PythonTorchFunctionTLS;
  const at::impl::TorchFunctionDisabledState before_;
};

// Clears what was collected for a step. Call it after foreshock_step_end, when the core has decided whether
// the next step is sampled: MathPathSampler::on_step_end enables the hooks of unfused attention only in
// sampled steps.
inline void forget_step() {
  training_clock().on_step_end();
  gradient_report().on_step_end();
  gradient_norms().forget();
  engine_gradients().forget();
  MathPathSampler::on_step_end();
}

// Order of the helper's calls: prepare() once; then set_clock(), add_other() for each further optimizer, and
// allow(); then begin() before and end() after every step of an optimizer, and take() whenever the helper
// needs the counts. If begin() returns -1 or end() returns false, the helper handles the step.
class QuietSteps {
 public:
  static QuietSteps& instance() {
    static Lasting<QuietSteps> steps;  // is never destroyed
    return steps.get();
  }

  // Keeps references to the objects and attribute names that later calls need: sys.getprofile, torch.Tensor,
  // the size of a tensor's Python object, and the dictionary of the module torch.compiler.
  void prepare(void* getprofile, void* tensor_type, void* tensor_bytes, void* compiler) {
    const Python& python = Python::get();
    getprofile_ = PythonReference::to(getprofile);
    tensor_type_ = PythonReference::to(tensor_type);
    compiler_ = PythonReference::to(compiler);
    modules_ = PythonReference::to(python.modules());
    has_usual_heads_ = has_usual_head(compiler);  // stands for all objects
    tensor_words_ = static_cast<size_t>(python.integer(tensor_bytes)) / sizeof(void*);
    for (const auto& [name, text] : {std::pair(&param_groups_, "param_groups"),
                                     {&params_, "params"},
                                     {&state_, "state"},
                                     {&found_inf_, "found_inf"},
                                     {&grad_scale_, "grad_scale"},
                                     {&cdata_, "_cdata"},
                                     {&lr_, "lr"},
                                     {&step_, "step"},
                                     {&is_compiling_, "_is_compiling_flag"}})
      *name = PythonReference(python.intern(text));
  }

  // Remembers the optimizer that is the clock. Returns false if no step can be quiet. The caller must have
  // checked that reading the optimizer and its tensors runs no Python code of the trainer. `parameters`:
  // TensorImpl addresses of the clock's parameters in their order, then of the companions' (see add_other).
  // If `count` is 0, a step in which the trainer has computed gradient norms is not quiet.
  bool set_clock(void* optimizer, const void* const* parameters, size_t count) {
    stop();
    clock_ = {};
    others_.clear();
    try {
      parameters_.assign(parameters, parameters + count);
    } catch (const std::bad_alloc&) {
      return false;
    }
    OptimizerFields fields;
    can_allow_ = has_usual_heads_ &&
                 read_fingerprint(optimizer, nullptr, &clock_.last_parameter, &fields, &clock_.fingerprint);
    return can_allow_;
  }

  // Remembers an optimizer other than the clock. Returns false if no step can be quiet any more. `number`: 0
  // for a companion, which steps after the clock without a backward pass of its own; else the number in the
  // name of its loss ("loss of optimizer 2"). Companions must come in the order of set_clock()'s
  // `parameters`.
  bool add_other(void* optimizer, int64_t number) {
    KnownOptimizer other;
    other.number = number;
    OptimizerFields fields;
    if (others_.size() == kMostOthers ||
        !read_fingerprint(optimizer, nullptr, &other.last_parameter, &fields, &other.fingerprint))
      return can_allow_ = false;
    try {
      others_.push_back(other);
    } catch (const std::bad_alloc&) {
      return can_allow_ = false;
    }
    return true;
  }

  struct Allowance {                 // what the helper allows, and what it has already seen
    bool may_end_quietly;            // the end of the next step may be quiet too
    bool is_counted;                 // no optimizer state has the step number, so steps are counted
    int64_t seen_step;               // number of the clock's last step
    const void* seen_address;        // the parameter (TensorImpl) whose state had this number
    int64_t begins_left, ends_left;  // how many more beginnings and ends of the clock's steps may be quiet
    ssize_t modules;                 // size of sys.modules when the helper last searched it for loggers
    uint32_t* due_numbers;           // buffer: begin() writes the numbers of the weights to be measured
    size_t due_capacity;             // length of due_numbers; 0: no weight is measured
  };

  // Allows quiet steps from now on. Has no effect after stop(), until the next set_clock().
  void allow(const Allowance& allowance) {
    allowance_ = allowance;
    last_number_ = {};  // the helper may have found the number elsewhere
    is_allowed_ = can_allow_;
  }

  // Ends quiet steps until another set_clock() and allow(), for example when an optimizer was destroyed.
  void stop() {
    is_allowed_ = can_allow_ = false;
    quiet_optimizer_ = nullptr;
    last_number_ = {};
  }

  void run_next_end_in_python() { allowance_.may_end_quietly = false; }

  // Call it before the optimizer's work. `args`, `kwargs`: those of the optimizer's step(). Returns how many
  // weights must be measured (see Allowance::due_numbers); if any, the end of the step is not quiet. Returns
  // -1 if the step is not quiet; nothing was published then. Publishes the gradient norms, except in a step
  // with a closure (a function that computes the gradients during step()): then end() publishes them.
  [[gnu::hot]] int64_t begin(void* optimizer, void* args, void* kwargs) {
    quiet_optimizer_ = nullptr;
    if (!is_allowed_) return -1;
    const bool is_clock = optimizer == clock_.fingerprint.optimizer;
    KnownOptimizer* const known = is_clock ? &clock_ : find_other(optimizer);
    if (!known) return -1;
    if (is_clock && allowance_.begins_left <= 0) return -1;
    // If another optimizer steps a second time since the last tick, the helper may make it the clock. If the
    // step may not end quietly, weights of this optimizer may be due, which only the helper can report.
    if (!is_clock && (known->has_stepped || !allowance_.may_end_quietly)) return -1;
    const uint64_t begin_ns = now_ns();
    if (is_traced()) return -1;
    const Given given = read_arguments(args, kwargs);
    if (given == Given::kOther) return -1;
    // end() checks whether the clock is unchanged, when the optimizer's work has brought its objects into the
    // caches. That is enough if nothing is published here: no norms, no closure, no due weights (see below).
    const bool end_checks = is_clock && given == Given::kNothing && gradient_norms().is_empty();
    const auto is_as_known = [&] {
      if (is_profiled()) return false;
      OptimizerFields fields;
      if (is_unchanged(known, &fields)) return true;
      // The helper names the changed tensors: the clock's in this step, others in the clock's next step.
      if (!is_clock) stop();
      return false;
    };
    if (!end_checks && !is_as_known()) return -1;
    uint64_t in_core = 0;
    size_t due = 0;
    if (is_clock) {
      has_closure_ = given == Given::kCallable;
      if (!has_closure_ && !publish_gradients(&in_core)) return -1;
      due = allowance_.due_capacity == 0
                ? 0
                : foreshock_weights_due(allowance_.due_numbers, allowance_.due_capacity);
    }
    if (due > 0 && end_checks && !is_as_known()) return -1;
    if (due == 0)
      quiet_optimizer_ = optimizer;
    else
      run_next_end_in_python();
    add_own_time(now_ns() - begin_ns - in_core);
    return static_cast<int64_t>(due);
  }

  // Call it after the optimizer's work. False: the end of the step is not quiet, and nothing was reported.
  [[gnu::hot]] bool end(void* optimizer) {
    const void* const quiet_optimizer = std::exchange(quiet_optimizer_, nullptr);
    if (quiet_optimizer != optimizer || !is_allowed_) return false;
    const uint64_t begin_ns = now_ns();
    if (optimizer != clock_.fingerprint.optimizer)
      return allowance_.may_end_quietly && end_other(find_other(optimizer), begin_ns);
    OptimizerFields fields;
    if (!is_unchanged(&clock_, &fields)) return stop(), false;  // the helper will name the changed tensors
    return allowance_.may_end_quietly && end_step(fields, begin_ns);
  }

  // Makes the end of the next step run in Python. Returns a tuple of integers about the quiet steps since the
  // last call: their number; time (ns) that this class took; the part of this time that no step has reported
  // to the core; end of the last step (now_ns); most time that this class took in a step;
  // Allowance::seen_step; Allowance::seen_address; bits, of which bit n is set if others_[n] has stepped
  // since the last tick.
  void* take() {
    run_next_end_in_python();
    long long stepped = 0;
    for (size_t n = 0; n < others_.size(); ++n)
      stepped |= static_cast<long long>(std::exchange(others_[n].has_stepped, false)) << n;
    using Int = long long;  // "L" in the format
    const auto address = reinterpret_cast<intptr_t>(allowance_.seen_address);
    void* taken =
        Python::get().build("(LLLLLLLL)", Int(steps_), Int(own_ns_), Int(unreported_ns_), Int(ended_at_ns_),
                            Int(max_step_ns_), Int(allowance_.seen_step), Int(address), stepped);
    steps_ = own_ns_ = unreported_ns_ = max_step_ns_ = own_at_step_ns_ = 0;
    return taken;
  }

 private:
  // Some properties of an optimizer that are cheap to compare, to notice changes. `kind`: a Python type.
  struct Fingerprint {
    void *optimizer, *kind, *state_kind;  // the optimizer's object, its type, the type of its `state`
    ssize_t groups;                       // number of groups
    void* first_list;                     // list of parameters of the first group
    ssize_t first_size;                   // length of `first_list`
    void* first_kind;                     // type of the first parameter
    void* last_list;                      // list of parameters of the last group
    ssize_t last_size;                    // length of `last_list`
    void *last_kind, *last_impl;          // the last parameter: its type, the address of its TensorImpl
    bool operator==(const Fingerprint&) const = default;
  };
  struct TensorAddress {  // a tensor's Python object and the address of its TensorImpl
    void *tensor, *address;
  };
  struct KnownOptimizer {  // an optimizer as it was at the last set_clock()
    Fingerprint fingerprint = {};
    TensorAddress last_parameter = {};  // for address_of()
    int64_t number = 0;                 // see add_other()
    bool has_stepped = false;  // has made a quiet step since the last tick; always false for the clock
  };
  // Where the number of the last step was read: in a tensor with one element, the only one of its storage.
  // Owns the storage, so that it can be read even after the optimizer has got other tensors.
  struct LastNumber {
    c10::Storage storage;              // null: unknown
    at::ScalarType type = at::kFloat;  // of the tensor: kFloat or kDouble
    const void* states = nullptr;      // `state` of the optimizer
  };
  struct Ending {         // a step of the clock that has ended
    int64_t number;       // becomes Allowance::seen_step
    const void* address;  // becomes Allowance::seen_address
    double rate;          // learning rate of the first group
  };
  // A dictionary of param_groups, its list of parameters, and the length of this list, at least 1.
  struct Group {
    void *dictionary, *parameters;
    ssize_t size;
  };
  // An optimizer's __dict__, and values that are borrowed from it.
  struct OptimizerFields {
    PythonReference own;                        // __dict__
    void *groups = nullptr, *states = nullptr;  // param_groups and state
    ssize_t count = 0;                          // number of groups, at least 1
    Group first_group = {};
  };

  // A borrowed reference; nullptr if the key is missing. Looking up a string runs no Python code.
  static void* item(void* dict, const PythonReference& key) {
    return Python::get().dict_item(dict, key.get());
  }

  // The arguments of step() after the first (the optimizer), where None counts as absent. kCallable: all
  // arguments are callable, as a closure is. kOther: an argument is not callable.
  enum class Given { kNothing, kCallable, kOther };
  static Given read_arguments(void* args, void* kwargs) {
    const Python& python = Python::get();
    Given given = Given::kNothing;
    const auto add = [&](void* value) {
      if (value == python.none || given == Given::kOther) return;
      given = python.is_callable(value) ? Given::kCallable : Given::kOther;
    };
    const ssize_t count = python.tuple_size(args), named = python.dict_size(kwargs);
    // A hook of the trainer may have replaced `args` and `kwargs` by objects of other types.
    if (count < 0 || named < 0) return python.clear_error(), Given::kOther;
    for (ssize_t n = 1; n < count; ++n) add(python.tuple_item(args, n));
    if (named == 0) return given;
    ssize_t position = 0;
    void *key = nullptr, *value = nullptr;
    while (python.dict_next(kwargs, &position, &key, &value)) add(value);
    return given;
  }

  // Whether a profiler records the Python calls of this thread. The helper must then handle a step in which
  // something is published.
  bool is_profiled() const {
    const PythonReference profiler(Python::get().call(getprofile_.get(), nullptr));
    return profiler.get() != Python::get().none;
  }

  // Whether the hooks run on tensors without data. torch.export does this, with torch.compiler.is_compiling()
  // true, in a dispatch mode, which intercepts all operations of this thread. Without such a mode, the flag
  // of is_compiling() is not read.
  bool is_traced() const {
    return c10::impl::TorchDispatchModeTLS::any_modes_set() &&
           item(compiler_.get(), is_compiling_) != Python::get().false_object;
  }

  // Whether modules were imported since the helper last searched them for loggers.
  bool has_new_modules() const { return Python::get().dict_size(modules_.get()) != allowance_.modules; }

  // Fills in *out. Returns false if the optimizer has no state, no list of groups, or an unusual first group.
  bool read_fields(void* optimizer, OptimizerFields* out) const {
    const Python& python = Python::get();
    out->own = PythonReference(python.own_dict(optimizer, nullptr));
    if (!out->own) return python.clear_error(), false;
    out->groups = item(out->own.get(), param_groups_);
    out->states = item(out->own.get(), state_);
    if (!out->groups || !out->states || !is_exactly(out->groups, python.list_type)) return false;
    out->count = python.list_size(out->groups);
    return out->count > 0 && read_group(python.list_item(out->groups, 0), &out->first_group);
  }

  // Fills in *out. Returns false if `group` is not a dictionary with a non-empty list of parameters.
  bool read_group(void* group, Group* out) const {
    const Python& python = Python::get();
    if (!is_exactly(group, python.dict_type)) return false;
    void* parameters = item(group, params_);
    if (!parameters || !is_exactly(parameters, python.list_type)) return false;
    *out = {group, parameters, python.list_size(parameters)};
    return out->size > 0;
  }

  // The TensorImpl of a tensor of a known type; null if it cannot be read. Updates *seen, the last tensor and
  // its address. Reading the attribute `_cdata` is the slowest part of a quiet step. So the first call finds
  // the word of the tensor's Python object that has the address; later calls read the attribute only if the
  // tensor or this word has changed.
  void* address_of(void* tensor, TensorAddress* seen) {
    const auto* words = static_cast<void* const*>(tensor);
    if (impl_word_ != 0 && seen->tensor == tensor && words[impl_word_] == seen->address) return seen->address;
    const NoTorchFunction hidden;
    const PythonReference number(Python::get().attribute(tensor, cdata_.get()));
    void* address = number ? Python::get().address(number.get()) : nullptr;
    if (!number) Python::get().clear_error();
    for (size_t n = kHeadWords; impl_word_ == 0 && n < tensor_words_; ++n)
      if (words[n] == address) impl_word_ = n;
    *seen = {tensor, address};
    return address;
  }

  // Reads the fingerprint and the fields. Returns false if the optimizer has no readable parameters, or if
  // its types differ from those of `known` (null: any types). `last_seen`: the optimizer's last_parameter.
  [[gnu::hot]] bool read_fingerprint(void* optimizer, const Fingerprint* known, TensorAddress* last_seen,
                                     OptimizerFields* fields, Fingerprint* out) {
    const Python& python = Python::get();
    Group last;
    if (!read_fields(optimizer, fields) ||
        !read_group(python.list_item(fields->groups, fields->count - 1), &last))
      return false;
    const Group& first = fields->first_group;
    void* tensor = python.list_item(last.parameters, last.size - 1);
    *out = {optimizer,
            python_type_of(optimizer),
            python_type_of(fields->states),
            fields->count,
            first.parameters,
            first.size,
            python_type_of(python.list_item(first.parameters, 0)),
            last.parameters,
            last.size,
            python_type_of(tensor),
            nullptr};
    const bool has_known_state = known && out->state_kind == known->state_kind;
    if (!has_known_state && !python.is_subtype(out->state_kind, python.dict_type)) return false;
    if (known && (out->kind != known->kind || out->last_kind != known->last_kind)) return false;
    out->last_impl = address_of(tensor, last_seen);
    return out->last_impl != nullptr;
  }

  // Ends a step of the clock. `fields`: the clock's. `begin_ns`: when end() was called (now_ns). False
  // leaves the end to the helper, so all checks come before the first change.
  [[gnu::hot]] bool end_step(const OptimizerFields& fields, uint64_t begin_ns) {
    if (allowance_.ends_left <= 0) return false;
    Ending ending = {};
    if (!read_step(fields, &ending) || has_new_modules()) return false;
    uint64_t in_core = 0;
    if (has_closure_ && !publish_gradients(&in_core)) return false;
    for (KnownOptimizer& other : others_) other.has_stepped = false;
    --allowance_.begins_left;
    --allowance_.ends_left;
    ++steps_;
    allowance_.seen_step = ending.number;
    allowance_.seen_address = ending.address;
    add_own_time(now_ns() - begin_ns - in_core);
    max_step_ns_ = std::max(max_step_ns_, own_ns_ - own_at_step_ns_);
    own_at_step_ns_ = own_ns_;
    ended_at_ns_ = begin_ns;
    foreshock_step step{};
    step.size = sizeof(step);
    step.version = FORESHOCK_ABI_VERSION;
    step.step = allowance_.is_counted ? -1 : ending.number;
    step.step_source = allowance_.is_counted ? FORESHOCK_STEP_COUNTED : FORESHOCK_STEP_OPTIMIZER_STATE;
    step.learning_rate = ending.rate;
    step.given = FORESHOCK_GIVEN_LEARNING_RATE;
    step.prepare_ns = std::exchange(unreported_ns_, 0) + MathPathSampler::take_ns();
    foreshock_step_end(&step);
    const uint64_t after = now_ns();
    forget_step();
    add_own_time(now_ns() - after);  // reported with the next step
    return true;
  }

  // Ends a step of an optimizer other than the clock. If there was a backward pass since the last tick, its
  // losses are those of this optimizer, not of the clock.
  bool end_other(KnownOptimizer* other, uint64_t begin_ns) {
    if (!other) return false;
    other->has_stepped = true;
    if (other->number > 0 && training_clock().backward_count() > 0) {
      char name[32];
      std::snprintf(name, sizeof name, "loss of optimizer %lld", static_cast<long long>(other->number));
      foreshock_loss_is_of(name);
    }
    add_own_time(now_ns() - begin_ns);
    return true;
  }

  KnownOptimizer* find_other(void* optimizer) {  // null if add_other() was not called with this optimizer
    for (KnownOptimizer& other : others_)
      if (other.fingerprint.optimizer == optimizer) return &other;
    return nullptr;
  }

  bool is_unchanged(KnownOptimizer* known, OptimizerFields* fields) {  // fills in *fields
    Fingerprint now;
    return read_fingerprint(known->fingerprint.optimizer, &known->fingerprint, &known->last_parameter, fields,
                            &now) &&
           now == known->fingerprint;
  }

  // Reports the gradient norms that the trainer has computed since the last backward pass, if any, and sets
  // *in_core to the ns spent in the core. Does nothing and returns false if the helper must handle them.
  bool publish_gradients(uint64_t* in_core) {
    // Without a backward pass this step() is not the end of a training step. A sampled step is not quiet.
    if (training_clock().backward_count() == 0 || foreshock_step_is_sampled()) return false;
    const uint64_t before = gradient_report().core_ns();
    if (!gradient_report().skip_without_norms() && !publish_norms()) return false;
    *in_core = gradient_report().core_ns() - before;
    return true;
  }

  // Does nothing and returns false if the optimizers step other parameters than those given to set_clock(),
  // or if one of them multiplies gradients itself (grad_scale).
  bool publish_norms() {
    if (parameters_.empty() || !are_all_parameters_known()) return false;
    try {
      // 1.0: the optimizer does not scale. true: gradients may have been clipped unseen, so only norms are
      // reported. 0, the number of writes by the averaging over ranks, then has no effect.
      gradient_report().publish(parameters_.data(), parameters_.size(), 1.0, 0, true);
    } catch (...) {
      foreshock_off("adapter_gradients");
    }
    return true;
  }

  // Whether the clock and its companions have exactly the parameters in parameters_. Compares the TensorImpl
  // in each parameter's object, so that no address of a destroyed tensor is read later.
  bool are_all_parameters_known() const {
    size_t count = 0;
    bool are_known = impl_word_ != 0 && has_known_parameters(clock_.fingerprint, &count);
    for (const KnownOptimizer& other : others_)
      if (other.number == 0) are_known = are_known && has_known_parameters(other.fingerprint, &count);
    return are_known && count == parameters_.size();
  }

  // Whether the optimizer has no grad_scale, and its parameters are those of parameters_ from *count on. Adds
  // their number to *count. impl_word_ is valid only for objects of the two types in `fingerprint`.
  bool has_known_parameters(const Fingerprint& fingerprint, size_t* count) const {
    const Python& python = Python::get();
    OptimizerFields fields;
    if (!read_fields(fingerprint.optimizer, &fields) || item(fields.own.get(), grad_scale_)) return false;
    for (ssize_t n = 0; n < fields.count; ++n) {
      Group group;
      if (!read_group(python.list_item(fields.groups, n), &group)) return false;
      for (ssize_t i = 0; i < group.size; ++i, ++*count) {
        void* tensor = python.list_item(group.parameters, i);
        const void* kind = python_type_of(tensor);
        if (kind != fingerprint.first_kind && kind != fingerprint.last_kind) return false;
        if (*count == parameters_.size()) return false;
        if (static_cast<void* const*>(tensor)[impl_word_] != parameters_[*count]) return false;
      }
    }
    return true;
  }

  // Reads the step number from the state of the first parameter. If Allowance::is_counted, the number is the
  // last one plus 1. Returns false if only the helper can handle the step, for example if the optimizer has
  // skipped it (the number is unchanged) or is fused (it has found_inf, or a step number in the group).
  [[gnu::hot]] bool read_step(const OptimizerFields& fields, Ending* ending) {
    const Python& python = Python::get();
    if (item(fields.own.get(), found_inf_)) return false;
    void* parameter = python.list_item(fields.first_group.parameters, 0);
    void* rate = item(fields.first_group.dictionary, lr_);
    if (!rate || !is_exactly(rate, python.float_type) || item(fields.first_group.dictionary, step_))
      return false;
    ending->rate = python.real(rate);
    if (has_next_number(fields.states)) {
      *ending = {allowance_.seen_step + 1, allowance_.seen_address, ending->rate};
      return true;
    }
    last_number_ = {};
    auto* impl = static_cast<c10::TensorImpl*>(address_of(parameter, &first_parameter_));
    if (!impl || !has_gradient(*impl)) return false;  // the helper searches for a parameter with a gradient
    // The hash of a tensor is its address. Passing it avoids Tensor.__hash__, which is written in Python.
    void* state = python.dict_item_of_hash(fields.states, parameter, reinterpret_cast<ssize_t>(parameter));
    std::optional<int64_t> number;
    if (state && (!is_exactly(state, python.dict_type) || !read_number(item(state, step_), &number)))
      return false;
    if (number.has_value() == allowance_.is_counted) return false;  // a number has appeared or disappeared
    if (allowance_.is_counted) {
      *ending = {allowance_.seen_step + 1, allowance_.seen_address, ending->rate};
      return true;
    }
    ending->number = *number;
    ending->address = impl;
    last_number_.states = fields.states;
    return *number != allowance_.seen_step || impl != allowance_.seen_address;
  }

  // Whether the storage of last_number_ has the number after the last step's. Then the parameter's gradient
  // and its state need not be read. The number in the storage stays unchanged if the optimizer has skipped
  // the step or the parameter, or keeps the parameter's number in another tensor.
  bool has_next_number(const void* states) const noexcept try {
    const LastNumber& last = last_number_;
    if (!last.storage || last.states != states) return false;
    const void* data = last.storage.data();
    if (!data || last.storage.nbytes() != c10::elementSize(last.type)) return false;
    const double number =
        last.type == at::kFloat ? *static_cast<const float*>(data) : *static_cast<const double*>(data);
    return number == static_cast<double>(allowance_.seen_step) + 1;
  } catch (...) {
    return false;
  }

  static bool has_gradient(const c10::TensorImpl& impl) {
    const auto* meta = static_cast<const torch::autograd::AutogradMeta*>(impl.autograd_meta());
    return meta && meta->grad_.defined();
  }

  // Reads a step number: a Python integer, or a one-element tensor on the CPU. `number` stays empty if
  // `value` is null, or if reading it would wait for a device. Returns false if only the helper can read it.
  bool read_number(void* value, std::optional<int64_t>* number) {
    const Python& python = Python::get();
    constexpr double kLimit = 9007199254740992.0;  // 2^53: below it a double holds every whole number
    if (!value) return true;
    if (is_exactly(value, python.integer_type)) {
      int overflow = 0;
      const long long whole = python.integer_or_overflow(value, &overflow);
      if (overflow != 0 || whole < 0 || whole >= static_cast<long long>(kLimit)) return false;
      *number = whole;
      return true;
    }
    if (!is_exactly(value, tensor_type_.get())) return false;
    auto* impl = static_cast<c10::TensorImpl*>(address_of(value, &step_tensor_));
    if (!impl) return false;
    const at::Tensor held(c10::intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>::reclaim_copy(impl));
    const auto real = scalar_on_cpu(held);
    if (!real) return true;
    if (!(*real >= 0 && *real < kLimit)) return false;  // also if the number is NaN
    *number = static_cast<int64_t>(*real);
    const at::ScalarType type = held.scalar_type();
    // A number in a larger storage is not kept, since the storage would be kept as well.
    if ((type == at::kFloat || type == at::kDouble) && held.storage().nbytes() == held.element_size())
      last_number_ = {held.storage(), type};
    return true;
  }

  // Counts time that this class took, without the time that publish_gradients() has spent in the core.
  void add_own_time(uint64_t nanoseconds) {
    unreported_ns_ += nanoseconds;
    own_ns_ += nanoseconds;
  }

  static constexpr size_t kMostOthers = 62;  // less than 63: take() returns a bit for each in a long long

  PythonReference getprofile_, tensor_type_, compiler_, modules_;
  PythonReference param_groups_, params_, state_, found_inf_, grad_scale_, cdata_, lr_, step_, is_compiling_;
  size_t tensor_words_ = 0;  // size of a tensor's Python object in words
  size_t impl_word_ = 0;     // index of the word in it that has the address of the TensorImpl; 0: unknown
  TensorAddress first_parameter_ = {}, step_tensor_ = {};  // the clock's, for address_of()
  LastNumber last_number_;
  KnownOptimizer clock_;
  std::vector<KnownOptimizer> others_;
  std::vector<const void*> parameters_;  // TensorImpl addresses of the parameters given to set_clock()
  Allowance allowance_ = {};
  bool has_usual_heads_ = false;     // see has_usual_head()
  bool can_allow_ = false;           // set_clock() has succeeded, and there was no stop() since
  bool is_allowed_ = false;          // steps may be quiet
  void* quiet_optimizer_ = nullptr;  // the optimizer whose step in progress began quietly
  bool has_closure_ = false;         // the clock's step() got a closure, which computes the gradients
  // See take(): steps, own time, its unreported part, end of the last step, most own time in one step.
  uint64_t steps_ = 0, own_ns_ = 0, unreported_ns_ = 0, ended_at_ns_ = 0, max_step_ns_ = 0;
  uint64_t own_at_step_ns_ = 0;  // own_ns_ at the end of the last step
};

}  // namespace foreshock::adapter

#endif  // FORESHOCK_INTEGRATIONS_TORCH_QUIET_STEPS_H_
