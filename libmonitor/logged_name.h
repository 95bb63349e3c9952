// What a number is that the training logs, by the name it logs it under.
#ifndef FORESHOCK_LIBMONITOR_LOGGED_NAME_H_
#define FORESHOCK_LIBMONITOR_LOGGED_NAME_H_

namespace foreshock {

enum class Logged { kOther, kLoss, kGradientNorm };

// "loss", "train/loss", "lm loss", "train/grad_norm", ...: what trainers in wide use call their training loss
// and the norm of the gradient before clipping. What it says of a validation set is kOther; so is any name
// that is not known, for a wrong loss is worse than none. Null: kOther.
Logged logged_as(const char* name);

}  // namespace foreshock

#endif  // FORESHOCK_LIBMONITOR_LOGGED_NAME_H_
