// What the verbs of `dllm-relay agent` do; each returns its result as JSON or throws Refusal.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

#include "json.h"
#include "records.h"
#include "spawn.h"

namespace dllm::agent {

// The name in a request. Throws Refusal when it can be none.
std::string name_in(const json::Value& request);

// The absolute path in a request. Throws Refusal.
std::string path_in(const json::Value& request);

// Any bytes as text.
std::string base64(std::string_view data);

// Of the disk the directory is on, or will be on; 0 where that is not known.
std::uint64_t disk_free_bytes(std::filesystem::path directory);

// Quick ones, done at once.
std::string memory_of();
std::string records_of(const RunDir& run, const json::Value& request);
std::string log_of(const RunDir& run, const json::Value& request);
std::string listens_of(const json::Value& request);
std::string port_owner_of(const json::Value& request);
std::string orphans_of(const RunDir& run);

// The specification in a request to start. Throws Refusal.
SpawnOptions spec_in(const RunDir& run, const json::Value& request);

// Those that take a while, done in a child.
std::string start(const RunDir& run, const std::string& name, const SpawnOptions& options);
std::string stop(const RunDir& run, const json::Value& request);
std::string remove(const RunDir& run, const json::Value& request);
std::string run(const json::Value& request);
std::string machine(const json::Value& request);
std::string find(const json::Value& request);
std::string read(const json::Value& request);
std::string identity(const json::Value& request);
std::string tensors(const json::Value& request);
std::string seed(const json::Value& request);
std::string cached(const json::Value& request);
std::string uncache(const json::Value& request);

}  // namespace dllm::agent
