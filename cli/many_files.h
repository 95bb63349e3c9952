// Files that are open at once: a checkpoint has hundreds of shards, a record of a job as many ranks.
#ifndef FORESHOCK_CLI_MANY_FILES_H_
#define FORESHOCK_CLI_MANY_FILES_H_

namespace foreshock::cli {

// As many as this process may ask for, which is more than the usual limit.
void allow_many_files();

}  // namespace foreshock::cli

#endif  // FORESHOCK_CLI_MANY_FILES_H_
