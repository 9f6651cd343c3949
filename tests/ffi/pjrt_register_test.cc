// Registration with a stub of a PJRT plugin: which handlers go through which extension, and what is
// said of plugins that cannot take them.
#include <gtest/gtest.h>

#include <cstring>
#include <set>
#include <string>
#include <vector>

#include "intarsia/intarsia.h"
#include "src/pjrt/c_api.h"

namespace intarsia::pjrt {

struct Error {
  std::string text;
};

namespace {

// What a plugin was given, for "gpu" or the platform named.
struct Row {
  std::string platform, name;
  void *initialize, *execute;
  bool operator==(const Row&) const = default;
  auto operator<=>(const Row&) const = default;
};
std::multiset<Row> taken;
std::string refused;  // a target
int errors_alive = 0;

Error* Take(Row row) {
  if (row.name == refused) return ++errors_alive, new Error{"no room for " + row.name};
  taken.insert(row);
  return nullptr;
}
Error* TakeForGpu(GpuCustomCallArgs* args) {
  EXPECT_EQ(args->struct_size, 64u);
  EXPECT_EQ(args->api_version, 1);
  EXPECT_EQ(args->instantiate, nullptr);
  EXPECT_EQ(args->prepare, nullptr);
  return Take({"CUDA", {args->name, args->name_size}, args->initialize, args->execute});
}
Error* TakeByPlatform(RegisterHandlerArgs* args) {
  EXPECT_EQ(args->struct_size, 56u);
  EXPECT_EQ(args->traits, 0);  // the handlers tell their own
  return Take({{args->platform, args->platform_size},
               {args->name, args->name_size},
               nullptr,
               args->handler});
}

class Plugin : public testing::Test {
 protected:
  Plugin() : words_(200) {
    taken.clear();
    refused.clear();
    errors_alive = 0;
    api()->struct_size = words_.size() * sizeof(void*);
    api()->version.minor = 112;
    Set(
        kErrorMessage, +[](ErrorMessageArgs* args) {
          args->message = args->error->text.data();
          args->message_size = args->error->text.size();
        });
    Set(
        kErrorDestroy, +[](ErrorDestroyArgs* args) {
          --errors_alive;
          delete args->error;
        });
    other_.base = {sizeof(Extension), 7, nullptr};
    api()->extensions = &other_.base;
  }

  PJRT_Api* api() { return reinterpret_cast<PJRT_Api*>(words_.data()); }
  void OffersFfi(size_t size = sizeof(FfiExtension)) {
    ffi_.base = {size, FfiExtension::kType, other_.base.next};
    ffi_.register_handler = &TakeByPlatform;
    other_.base.next = &ffi_.base;
  }
  void OffersGpu() {
    gpu_.base = {sizeof(gpu_), GpuCustomCallExtension::kType, other_.base.next};
    gpu_.custom_call = &TakeForGpu;
    other_.base.next = &gpu_.base;
  }
  // The text of the error; empty for success.
  std::string Register() {
    const int32_t code = intarsia_register_with_pjrt(api());
    return code ? intarsia_error() : "";
  }
  static std::multiset<Row> Handlers(std::string_view platform) {
    size_t count = 0;
    const intarsia_handler* rows = intarsia_handlers(&count);
    std::multiset<Row> wanted;
    for (size_t i = 0; i < count; ++i)
      if (rows[i].platform == platform)
        wanted.insert({rows[i].platform, rows[i].target, rows[i].initialize, rows[i].execute});
    return wanted;
  }

 private:
  template <class Fn>
  void Set(size_t slot, Fn* function) {
    api()->functions[slot] = reinterpret_cast<void (*)()>(function);
  }
  std::vector<void*> words_;
  FfiExtension other_{}, ffi_{};
  GpuCustomCallExtension gpu_{};
};

TEST_F(Plugin, OfACpuTakesTheHostsHandlers) {
  OffersFfi();
  EXPECT_EQ(Register(), "");
  EXPECT_FALSE(taken.empty());
  EXPECT_EQ(taken, Handlers("Host"));
}

TEST_F(Plugin, OfAGpuTakesAllStagesOfCudasHandlers) {
  OffersFfi();
  OffersGpu();
  const std::multiset<Row> wanted = Handlers("CUDA");
  if (wanted.empty()) {
    EXPECT_EQ(Register(),
              "the PJRT plugin is for CUDA, for which this library has no handlers; build it with "
              "CUDA");
  } else {
    EXPECT_EQ(Register(), "");
  }
  EXPECT_EQ(taken, wanted);
}

TEST_F(Plugin, MayRefuse) {
  OffersFfi();
  refused = "intarsia.rms_norm";
  EXPECT_EQ(Register(), "the PJRT plugin refuses intarsia.rms_norm: no room for intarsia.rms_norm");
  EXPECT_EQ(errors_alive, 0);
}

TEST_F(Plugin, WithoutExtensionTakesNone) {
  EXPECT_EQ(Register(),
            "the PJRT plugin takes no custom calls: it has neither the extension for GPU custom "
            "calls (type 0) nor the FFI extension (type 5)");
}

TEST_F(Plugin, WithAnExtensionFromBeforeRegistrationTakesNone) {
  OffersFfi(sizeof(FfiExtension) - sizeof(void*));
  EXPECT_NE(Register().find("takes no custom calls"), std::string::npos);
  EXPECT_TRUE(taken.empty());
}

TEST_F(Plugin, OfAnotherVersionIsRefused) {
  OffersFfi();
  const auto text = [](std::string version) {
    return "the PJRT plugin has version " + version + ", expected 0.96 (jaxlib 0.9.1) or a later 0";
  };
  api()->version.minor = 95;
  EXPECT_EQ(Register(), text("0.95"));
  api()->version.major = 1;
  api()->version.minor = 112;
  EXPECT_EQ(Register(), text("1.112"));
  EXPECT_TRUE(taken.empty());
}

TEST(PjrtRegistration, OfNullIsAnError) {
  EXPECT_EQ(intarsia_register_with_pjrt(nullptr), 3);
  EXPECT_STREQ(intarsia_error(), "the PJRT_Api is null");
}

}  // namespace
}  // namespace intarsia::pjrt
