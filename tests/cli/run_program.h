// Runs a built program and collects what it prints.
#pragma once

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "tests/temp_dir.h"

namespace twinkle::test {

struct Ran {
  int code = -1;
  std::string out, err;
};

inline std::string slurp(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  std::ostringstream text;
  text << in.rdbuf();
  return text.str();
}

/// build/bin/`program` with `args`, in an empty folder, with only PATH and `environment` set.
inline Ran run_program(const std::string& program, const std::vector<std::string>& args,
                       const std::vector<std::pair<std::string, std::string>>& environment = {},
                       const std::string& input = "") {
  const TempDir temp;
  const std::string& dir = temp.path();
  std::ofstream(dir + "/in", std::ios::binary) << input;
  const pid_t pid = ::fork();
  if (pid == 0) {
    const int in = ::open((dir + "/in").c_str(), O_RDONLY);
    const int out = ::open((dir + "/out").c_str(), O_WRONLY | O_CREAT, 0600),
              err = ::open((dir + "/err").c_str(), O_WRONLY | O_CREAT, 0600);
    ::dup2(in, 0);
    ::dup2(out, 1);
    ::dup2(err, 2);
    ::mkdir((dir + "/cwd").c_str(), 0700);
    if (::chdir((dir + "/cwd").c_str()) != 0) ::_exit(126);
    std::vector<std::string> words = {program};
    words.insert(words.end(), args.begin(), args.end());
    std::vector<std::string> settings = {"PATH=/usr/bin:/bin"};
    for (const auto& [name, value] : environment) settings.push_back(name + "=" + value);
    std::vector<char*> argv, envp;
    for (auto& word : words) argv.push_back(word.data());
    for (auto& setting : settings) envp.push_back(setting.data());
    argv.push_back(nullptr);
    envp.push_back(nullptr);
    ::execve((std::string(TWINKLE_BINARY_DIR) + "/bin/" + program).c_str(), argv.data(), envp.data());
    ::_exit(127);
  }
  int status = 0;
  ::waitpid(pid, &status, 0);
  Ran ran{WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status), slurp(dir + "/out"),
          slurp(dir + "/err")};
  return ran;
}

}  // namespace twinkle::test
