#include "answer.h"

#include "protocol/json.h"

namespace dllm::agent {

std::string answer(std::string_view id, std::string_view result) {
  return json::Object().raw("id", id).raw("ok", result).line();
}

std::string refusal(std::string_view id, const Refusal& refusal) {
  std::vector<std::string> pids;
  for (const pid_t pid : refusal.pids()) pids.push_back(std::to_string(pid));
  json::Object error;
  error.text("kind", refusal.kind()).text("message", refusal.what()).raw("pids", json::list(pids));
  return json::Object().raw("id", id).raw("error", error.str()).line();
}

std::string refusal_of_current(std::string_view id) {
  try {
    throw;
  } catch (const Refusal& error) {
    return refusal(id, error);
  } catch (const json::TypeError& error) {
    return refusal(id, Refusal(kBadRequest, error.what()));
  } catch (const std::exception& error) {
    return refusal(id, Refusal(kFailed, error.what()));
  }
}

}  // namespace dllm::agent
