// SPDX-License-Identifier: Apache-2.0
// Data leases: what learners ask and tell about the sample order.
#include <utility>

#include "yeto/sync/core/core.h"

namespace yeto::sync {

void Core::data_message(Member& member, const wire::Data& data) {
  const Seat seat = member.seat;
  const DataRange told{data.epoch, data.first, data.count};
  if (!options_.data_leases) {
    emit(Close{*member.conn, "this run hands out no data: its learners split the rows by seat"});
    return;
  }
  switch (data.action) {
    case wire::DataAction::kRequest:
      return grant_data(member, data);
    case wire::DataAction::kComplete:
      for (const DataRange& range : data_.complete(seat, told)) {
        data_changed_ = true;
        tape(TapeData{seat, "complete", range});
      }
      return;
    case wire::DataAction::kReturn:
      return return_data(seat, "return", data_.give_back(seat, told));
    case wire::DataAction::kGrant:
      emit(Close{*member.conn, "a learner may not grant data"});
      return;
  }
}

void Core::grant_data(Member& member, const wire::Data& data) {
  const Seat seat = member.seat;
  if (std::string objection = data_.objection(seat, data.count, data.rows); !objection.empty()) {
    const ConnId conn = *member.conn;
    tape(TapeLeave{seat, "refused data: " + objection});
    emit(Refuse{conn,
                {.code = wire::RefuseCode::kContract,
                 .retryable = 0,
                 .text = std::move(objection),
                 .tensors = {}}});
    roster_.leave(seat, "asked for other data");
    forget_process(seat);
    return;
  }
  const DataRange range = data_.grant(seat, data.count, data.rows);
  if (range.count > 0) {
    data_changed_ = true;
    tape(TapeData{seat, "grant", range});
  }
  send_grant(member, range);
}

void Core::send_grant(const Member& member, const DataRange& range) {
  wire::Data grant;
  grant.action = wire::DataAction::kGrant;
  grant.epoch = range.epoch;
  grant.first = range.first;
  grant.count = range.count;
  grant.rows = data_.state().rows;
  emit(Send{*member.conn, grant});
}

void Core::return_data(Seat seat, const char* why, const std::vector<DataRange>& ranges) {
  for (const DataRange& range : ranges) {
    data_changed_ = true;
    tape(TapeData{seat, why, range});
  }
}

// A resumed session keeps what it holds; a grant that was lost on the way comes again.
void Core::resend_data(const Member& member) {
  for (const DataRange& range : data_.held_by(member.seat)) {
    send_grant(member, range);
  }
}

}  // namespace yeto::sync
