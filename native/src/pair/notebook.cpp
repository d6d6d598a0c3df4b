#include "notebook.h"

#include <poll.h>

#include <algorithm>
#include <cstdio>
#include <exception>

#include "home/hashes.h"
#include "kept.h"
#include "posix.h"

namespace dllm::pair {

namespace {

constexpr std::string_view kMagic = "dllmasks";
constexpr std::uint32_t kFormat = 1;
// As much as is remembered, with its sizes, is half of that.
constexpr std::size_t kBytesMax = 384 << 10;
// Of workers that are gone nobody would delete them.
constexpr std::size_t kNotebooksMax = 64;
constexpr int kEveryMs = 1000;
// Where it failed: the disk may have room again.
constexpr int kAgainMs = 60'000;

std::string name_for(const std::string& worker, const std::string& owner) {
  const std::string whole = worker + '\0' + owner;
  const View bytes = view(whole);
  char name[32];
  const auto hash = static_cast<unsigned long long>(home::xxh64(bytes));
  std::snprintf(name, sizeof name, "%016llx.starts", hash);
  return name;
}

std::string preamble(std::string_view release) {
  return std::string(kMagic) + Packer().number(kFormat).text(release).take();
}

void pack(Packer& packer, const std::vector<std::string>& texts) {
  packer.number<std::uint64_t>(texts.size());
  for (const std::string& text : texts) packer.text(text);
}

std::vector<std::string> texts_in(Unpacker& unpacker) {
  std::vector<std::string> texts;
  const auto count = unpacker.number<std::uint64_t>();
  for (std::uint64_t i = 0; unpacker.fine() && i < count; ++i) texts.push_back(unpacker.text());
  return texts;
}

// Whether each is a question that can be asked.
bool are(const std::vector<std::string>& questions, const Rule* rule) {
  return std::ranges::all_of(questions, [&](const std::string& fields) {
    return rule != nullptr && fields.size() == rule->fields;
  });
}

}  // namespace

std::string encode_notebook(const Precedents& precedents, std::string_view release) {
  const Version version = precedents.version();
  Packer packer;
  packer.number(version.major).number(version.minor).number(version.patch);
  packer.text(precedents.devices());
  pack(packer, precedents.sizes());
  packer.number<std::uint64_t>(precedents.rows().size());
  for (const Precedents::Row& row : precedents.rows()) pack(packer, row);
  return with_sum(preamble(release) + packer.take());
}

std::optional<Precedents> decode_notebook(std::string_view data, std::string_view release) {
  const std::optional<std::string_view> before_sum = without_sum(data);
  if (!before_sum || data.size() > kBytesMax) return std::nullopt;
  Unpacker unpacker(*before_sum);
  if (!unpacker.starts_with(preamble(release))) return std::nullopt;
  Version version;
  for (std::uint8_t* part : {&version.major, &version.minor, &version.patch}) {
    *part = unpacker.number<std::uint8_t>();
  }
  if (!Protocol::covers(version)) return std::nullopt;
  const Protocol protocol(version);
  Precedents precedents;
  precedents.learn(version);
  precedents.learn(unpacker.text());
  const std::vector<std::string> sizes = texts_in(unpacker);
  if (!are(sizes, protocol.rule(kGetAllocSize))) return std::nullopt;
  for (const std::string& fields : sizes) precedents.size_asked(fields);
  const auto rows = unpacker.number<std::uint64_t>();
  for (std::uint64_t i = 0; unpacker.fine() && i < rows; ++i) {
    Precedents::Row row = texts_in(unpacker);
    if (!are(row, protocol.rule(kAllocBuffer))) return std::nullopt;
    precedents.allocated(std::move(row));
  }
  if (!unpacker.ended()) return std::nullopt;
  return precedents;
}

Notebook::Notebook(Link& link, std::string directory, std::string release, const std::string& owner)
    : link_(link),
      directory_(std::move(directory)),
      release_(std::move(release)),
      name_(name_for(link.name, owner)) {
  std::optional<Precedents> kept;
  try {
    const std::optional<std::string> data = read_kept(path(), kBytesMax);
    if (data) kept = decode_notebook(*data, release_);
  } catch (const std::exception&) {
    // What cannot be read is as good as nothing.
    return;
  }
  if (!kept) return;
  const std::lock_guard lock(link_.mutex);
  link_.precedents = std::move(*kept);
  kept_ = link_.precedents.revision();
}

void Notebook::run(int stop) {
  pollfd wait{stop, POLLIN, 0};
  const auto waited = [&] { return ::poll(&wait, 1, has_failed_ ? kAgainMs : kEveryMs); };
  while (retry(waited) == 0) keep_news();
  keep_news();
}

void Notebook::keep_news() {
  Precedents now;
  {
    const std::lock_guard lock(link_.mutex);
    if (link_.precedents.revision() == kept_) return;
    now = link_.precedents;
  }
  try {
    keep(directory_, name_, encode_notebook(now, release_));
    keep_latest(directory_, kNotebooksMax);
    kept_ = now.revision();
    has_failed_ = false;
  } catch (const std::exception& error) {
    if (std::exchange(has_failed_, true)) return;
    const std::lock_guard lock(link_.mutex);
    link_.tell("cannot keep in " + directory_ + " what is asked at a start, so that the next " +
               "relay here waits for it again: " + error.what());
  }
}

}  // namespace dllm::pair
