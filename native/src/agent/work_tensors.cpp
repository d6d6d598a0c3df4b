#include "hashed_model.h"
#include "protocol/json.h"
#include "work.h"

namespace dllm::agent {

namespace {

std::string row(const weights::TensorKey& key, const weights::TensorSums& sums) {
  std::vector<std::string> shape;
  for (const std::uint64_t count : key.shape) shape.push_back(std::to_string(count));
  json::Object object;
  object.text("name", key.name).number("type", key.type).raw("shape", json::list(shape));
  object.number("size_bytes", key.size_bytes);
  return object.text("fnv1a", hex(sums.fnv1a)).text("xxh64", hex(sums.xxh64)).str();
}

}  // namespace

std::string tensors(const json::Value& request) {
  const WorkTime time(request);
  const HashedModel model(path_in(request), time);
  std::vector<std::string> rows;
  for (std::size_t i = 0; model.done() && i < model.sums().size(); ++i) {
    rows.push_back(row(model.files().tensors()[i].key, model.sums()[i]));
  }
  json::Object object;
  object.number("done_bytes", model.done_bytes()).number("size_bytes", model.size_bytes());
  return object.flag("complete", model.done()).raw("tensors", json::list(rows)).str();
}

}  // namespace dllm::agent
