"""Every guard that can be taken away, what goes wrong without it, and what shows that.

A part that has guards of its own adds them here: a removal in ``removals.ALL_REMOVALS`` and its line in ``GUARDS``.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from tests.mutations.proofs import Named, Proof, Search

RECOVERY: Final = "tests/unit/test_recovery_again.py"
BESIDE: Final = "tests/unit/test_recovery_beside_others.py"
UNSHOWN: Final = "tests/unit/test_unshown.py"
STEPS: Final = "tests/simulation/test_interleavings.py"
ANCHORS: Final = "tests/unit/test_anchor.py"
CUT: Final = "tests/unit/test_monitor_cut.py"
GENERATIONS: Final = "tests/unit/test_index_generations.py"
SETTLING: Final = "tests/unit/test_recovery_table.py"
QUEUE: Final = "tests/contracts/test_queue_contract_subscribers.py"


class Guard(NamedTuple):
    """A removal by its name, and its consequence in a few words."""

    removal: str
    wrong: str
    proof: Proof


TOPIC_GUARDS: Final = (
    Guard("no_seal", "entries shown by a stray COMMIT count as deliveries", Search("topic", range(16))),
    Guard("unsealed_trusted", "the same, though seals are written", Search("topic", range(16))),
    Guard(
        "begin_not_flushed",
        "outputs precede the begin that would tell of them",
        Search("topic", range(28, 48)),
    ),
    Guard(
        "offsets_before_flush",
        "the position is past outputs that never arrived",
        Search("topic", range(4, 20)),
    ),
    Guard(
        "no_verification", "a broker lets a torn transaction go on unnoticed", Search("topic", range(207, 208))
    ),
    Guard(
        "one_client_for_all",
        "the same, where the configuration says that brokers do not verify",
        Search("unverified", range(207, 208)),
    ),
    Guard(
        "instance_kept",
        "a late EndTxn of the aborted transaction ends the next one",
        Search("topic", range(25)),
    ),
    Guard(
        "stale_membership",
        "a worker that lost its partitions stores positions",
        Search("topic", range(75, 80)),
    ),
    Guard(
        "hanging_left",
        "what hangs where a partition never got the marker is ended otherwise than it was: a message is lost",
        Search("topic", range(2342, 2343), "position beyond delivery"),
    ),
    Guard(
        "unshown_left",
        "a committed transaction that hung in an output is lost there with the next abort",
        Search("topic", range(98, 99), "lost write"),
    ),
    Guard(
        "vanished_left",
        "a committed transaction that hung in output and monitor is lost with the next abort",
        Search("topic", range(8415, 8416), "lost write"),
    ),
    Guard(
        "monitor_not_awaited",
        "an abort takes away what the monitor knew of committed transactions",
        Search("topic", range(44, 45), "lost write"),
    ),
    Guard(
        "torn_aborted",
        "the begin of what a stray COMMIT has shown is aborted where it hangs, and nothing tells of its outputs",
        Named(UNSHOWN, "test_what_a_stray_commit_shows_is_found_although_the_monitor_was_left_out"),
    ),
    Guard(
        "hidden_written_again",
        "what lies behind a stranger's open transaction is written a second time",
        Named(UNSHOWN, "test_what_hangs_behind_a_stranger_is_believed_and_left_to_the_next_commit"),
    ),
    Guard(
        "own_hang_awaited",
        "what hangs of a route that has nothing more to deliver stays hidden",
        Named(UNSHOWN, "test_a_quiet_worker_finds_what_hangs_of_its_own"),
    ),
    Guard(
        "own_hang_believed",
        "what hangs where nothing more goes is forgotten over what goes elsewhere",
        Named(UNSHOWN, "test_a_busy_worker_finds_what_hangs_of_its_own_where_nothing_more_goes"),
    ),
    Guard(
        "offsets_left_hanging",
        "the next commit under an id moves positions that were aborted",
        Search("topic", range(6, 7)),
    ),
    Guard(
        "touch_believed",
        "the same, since what was to end them was not heard of",
        Named(BESIDE, "test_a_touch_of_offsets_that_was_not_heard_of_either_is_repeated_before_anything_is_committed"),
    ),
    Guard("no_seek", "what a failed batch held is passed over", Search("topic", range(20))),
    Guard("no_sift", "a repeat in the log has a second effect", Search("topic", range(12))),
    Guard("no_index_added", "a worker repeats what it delivered itself", Search("topic", range(25))),
    Guard(
        "recoveries_in_step",
        "two workers fence each other for ever",
        Named(
            "tests/unit/test_worker_events.py",
            "test_two_workers_that_fence_each_other_do_not_recover_in_step_for_ever",
        ),
    ),
    Guard(
        "no_claim",
        "a predecessor that stood still is not found, and a late EndTxn publishes its outputs beside its heir's",
        Named(STEPS, "test_a_late_end_of_a_predecessors_claim_shows_nothing_of_it"),
    ),
    Guard(
        "offsets_skipped",
        "a worker that its group has dropped takes over again, and fences the owner",
        Named(STEPS, "test_whom_the_group_has_dropped_does_not_take_over_again"),
    ),
    Guard(
        "stable_end_read",
        "what lies above an open transaction in the monitor is delivered again",
        Named(STEPS, "test_nothing_is_decided_while_an_open_transaction_hides_the_end_of_the_monitor"),
    ),
    Guard(
        "outputs_to_stable_end",
        "outputs hidden by another worker's open transaction are delivered again",
        Named(BESIDE, "test_anothers_open_transaction_hides_no_output_of_a_torn_one"),
    ),
    Guard(
        "not_fenced",
        "a predecessor's open transaction may still commit",
        Named(RECOVERY, "test_killed_at_each_step_it_ends_as_one_clean_run[recovery.read-1]"),
    ),
    Guard(
        "false_entries_left",
        "messages that a torn transaction entered without their outputs are lost",
        Named(RECOVERY, "test_killed_at_each_step_it_ends_as_one_clean_run[recovery.claimed-1]"),
    ),
    Guard(
        "ordinary_settle_seal",
        "the seal proves false entries; only VOID entries behind it take them back",
        Named(SETTLING, "test_after_settling_the_index_holds_what_the_outputs_show"),
    ),
    Guard(
        "no_void_entries",
        "only the settle seal keeps false entries from counting; once it is gone they do",
        Named(SETTLING, "test_what_the_outputs_show_is_added_and_the_rest_is_taken_back"),
    ),
    Guard(
        "no_stand_by",
        "a member that was kicked out recovers on what it no longer owns",
        Named(
            "tests/unit/test_worker_events.py",
            "test_what_only_a_person_decides_is_shown_and_waits_for_the_word",
        ),
    ),
    Guard(
        "overtaken_is_lost",
        "another owner's news stops a worker for a person",
        Named(BESIDE, "test_a_position_is_lost_only_if_it_still_is"),
    ),
    Guard(
        "positions_said_once",
        "a late offset commit puts the position back for good",
        Named("tests/unit/test_worker_events.py", "test_positions_are_said_once_more_when_nothing_follows"),
    ),
    Guard(
        "last_announcement_obeyed",
        "a dead process's late announcement stops its successor",
        Named("tests/unit/test_twins.py", "test_a_dead_process_whose_announcement_arrives_late_stops_nobody"),
    ),
    Guard(
        "entries_not_carried",
        "what overtook a message that waits past the horizon has a second effect",
        Named("tests/unit/test_carrying.py", "test_whoever_takes_over_after_the_horizon_repeats_nothing"),
    ),
    Guard(
        "carried_not_entered",
        "a worker that keeps its partitions forgets what overtook a waiting message, and repeats it",
        Named(GENERATIONS, "test_what_is_written_again_outlasts_the_generation_that_it_lay_in"),
    ),
    Guard(
        "dropped_without_an_end",
        "an index on disk forgets what is still within the horizon",
        Named(GENERATIONS, "test_a_generation_goes_once_all_of_it_has_left_the_monitor"),
    ),
    Guard(
        "silent_recovery",
        "a recovery that takes longer than the group waits for a poll begins anew for ever",
        Named("tests/unit/test_staying.py", "test_it_polls_once_a_second_and_waits_for_nothing"),
    ),
    Guard(
        "settled_not_forgotten",
        "a transaction is settled a second time, from outputs that have left by then",
        Named(
            "tests/unit/test_reading_on.py",
            "test_what_was_settled_is_not_settled_again_when_the_outputs_have_left",
        ),
    ),
)
TABLE_GUARDS: Final = (
    Guard("no_epoch_guard", "a fenced worker writes", Search("route", range(400, 410), "two writers")),
    Guard(
        "trimmed_when_fenced",
        "a fenced worker deletes the rows that its heir decides by",
        Named(
            "tests/contracts/test_table_cursor_contract.py",
            "TestSqliteCursor::test_a_fenced_owner_does_not_trim",
        ),
    ),
    Guard(
        "index_trusted_above_position",
        "a restored database is starved",
        Search("route", range(250, 290), "lost write"),
    ),
    Guard(
        "older_copy_trusted",
        "a restored database is written to at its end",
        Search("route", range(255, 290), "lost write"),
    ),
    Guard(
        "no_sift_for_table",
        "a repeat older than the inbox has a second row",
        Search("route", range(130, 140), "duplicate"),
    ),
    Guard(
        "inbox_not_entered",
        "evidence is trimmed before the monitor has it",
        Search("route", range(100, 105), "lost dead letter"),
    ),
    Guard(
        "dead_letters_not_repeated",
        "a dead letter dies with its worker",
        Search("route", range(260, 270), "lost dead letter"),
    ),
    Guard(
        "two_batches_in_flight",
        "a batch that is sent again comes behind its successor",
        Named(STEPS, "test_what_lies_behind_a_batch_without_an_answer_waits_for_it"),
    ),
    Guard(
        "timer_never_resends",
        "a silent connection holds its lane up",
        Named(STEPS, "test_a_batch_whose_connection_falls_silent_is_sent_again_when_its_time_is_over"),
    ),
    Guard(
        "failed_batch_overtaken",
        "the position passes messages that have neither row nor dead letter",
        Named("tests/unit/test_sending.py", "test_what_lies_behind_a_batch_that_failed_does_not_move_the_position_past_it"),
    ),
)
CAPTURE_GUARDS: Final = (
    Guard(
        "resolver_without_insert",
        "a capture called aborted commits later",
        Search("capture", range(20), "failed write is there"),
    ),
    Guard(
        "lost_answer_is_aborted",
        "a committed capture is called aborted",
        Search("capture", range(20), "failed write is there"),
    ),
    Guard(
        "reports_not_awaited",
        "a capture commits without its messages",
        Search("capture", range(80), "lost append"),
    ),
    Guard(
        "capture_headers_left",
        "a second relay waits for a decision that is not there",
        Search("route", range(20), "capture header left"),
    ),
    Guard(
        "shared_without_turns",
        "what a thread writes behind the end of a block takes effect by itself, and two messages have one id",
        Named("tests/unit/test_capture_shared.py", "test_threads_that_publish_at_once_give_each_message_an_id_of_its_own"),
    ),
    Guard(
        "controls_transactions",
        "a message shows whose row was undone to a savepoint that the block set itself",
        Named("tests/unit/test_capture_transaction_over.py", "test_a_statement_that_would_undo_rows_without_their_messages_is_not_run"),
    ),
    Guard(
        "refused_and_gone_on",
        "a block commits without a message that was refused",
        Named("tests/unit/test_capture_shared.py", "test_a_block_that_goes_on_after_a_refused_message_commits_nothing"),
    ),
    Guard(
        "function_unfinished",
        "a block commits whose function has run nothing but what returns a coroutine",
        Named("tests/unit/test_capture_async.py", "test_a_function_that_returns_what_is_still_to_be_done_ends_the_block"),
    ),
    Guard(
        "cursor_outlives_block",
        "what a cursor writes behind its block takes effect by itself, or is the next block's",
        Named("tests/contracts/test_resource_lent.py", "test_a_cursor_runs_nothing_behind_its_block_and_keeps_its_rows[sqlite-True]"),
    ),
    Guard(
        "asked_before_the_scan",
        "a marker in the log is not waited for, and a trimmed decision counts as none",
        Named(
            "tests/unit/test_holds.py", "test_the_resource_is_asked_only_after_the_scan_to_the_high_watermark"
        ),
    ),
    Guard(
        "untaken_overtaken",
        "what too many ranges kept from being taken in is overtaken",
        Named("tests/unit/test_intake_bounds.py", "test_what_comes_behind_too_many_ranges_is_read_again"),
    ),
)
QUEUE_GUARDS: Final = (
    Guard(
        "attempt_token_ignored",
        "a worker taken for dead finishes what another one has by now",
        Named(QUEUE, "TestTake::test_a_stale_ticket_changes_nothing[sqlite]"),
    ),
    Guard(
        "pool_expired_at_get",
        "a message whose first taker dies is gone for the whole pool",
        Named(QUEUE, "TestPools::test_what_is_freed_may_be_taken_by_another_member[sqlite]"),
    ),
    Guard(
        "recovery_taken_literally",
        "a child of a dead attempt is revealed beside the child of the one that followed",
        Named(
            "tests/acceptance/test_003_65_to_80_recovery.py",
            "test_68_a_child_of_a_dead_attempt_is_not_revealed_by_another_attempts_done",
        ),
    ),
    Guard(
        "decision_not_inserted",
        "effects are rolled back, and the attempt commits after that",
        Named(
            "tests/integration/test_prepared_effects.py",
            "test_without_an_outcome_it_is_rolled_back_after_aborted_was_written",
        ),
    ),
    Guard(
        "handlers_may_commit",
        "a handler's writes stand without its message's DONE, and again after a worker's death",
        Named("tests/unit/test_work_testing.py", "test_what_a_worker_refuses_is_refused_here"),
    ),
    Guard(
        "behind_the_end",
        "what a handler writes behind a COMMIT of its own takes effect by itself",
        Named("tests/unit/test_work_desks_sqlite.py", "test_nothing_is_written_behind_the_end_of_the_transaction"),
    ),
    Guard(
        "returned_unawaited",
        "a message is DONE whose handler has run nothing but what returns a coroutine",
        Named("tests/unit/test_work_returned.py", "test_what_nobody_waits_for_is_a_failure"),
    ),
)
PUTTING_GUARDS: Final = (
    Guard(
        "former_connection_kept",
        "a batch that was formed before its database's connection was lost is put by nobody",
        Search("putting", range(15, 16), "lost write"),
    ),
    Guard(
        "held_asked_twice",
        "what is put while its publisher is paused or resumed is put by neither half of the batch",
        Named(
            "tests/unit/test_publishers_heard_meanwhile.py",
            "test_a_message_is_put_once_whenever_its_publisher_is_paused_or_resumed",
        ),
    ),
    Guard(
        "heirs_hear_nothing",
        "what a dead worker put of a publisher that was resumed meanwhile stays hidden",
        Search("putting", range(17, 24), "lost message"),
    ),
    Guard(
        "takers_over_hear_nothing",
        "the same, where a worker takes over that had obeyed long before",
        Named(
            "tests/unit/test_publishers_late.py",
            "test_who_takes_partitions_over_reveals_what_their_owner_before_put_behind_the_rest",
        ),
    ),
    Guard(
        "latest_word_not_asked",
        "what a dead worker kept of a publisher is overtaken by one that has not heard of the pause",
        Named("tests/unit/test_publishers_paused_at_takeover.py", "test_what_the_owner_before_kept_is_not_overtaken"),
    ),
    Guard(
        "revealed_by_any_answer",
        "what was kept is taken for revealed by a batch that was sent before",
        Named("tests/unit/test_publishers_late.py", "test_only_a_transaction_that_was_begun_since_has_revealed_it"),
    ),
    Guard(
        "due_shown_while_held",
        "what a publisher has delayed is shown although it is held",
        Search("putting", range(6, 7), "shown while held"),
    ),
    Guard(
        "due_past_what_is_kept",
        "what was delayed overtakes what a route that has heard of a pause keeps, where a handler's worker has not heard of it",
        Named("tests/contracts/test_queue_held_delays.py", "test_what_is_due_is_not_shown_past_what_its_publisher_was_kept_from_showing"),
    ),
    Guard(
        "due_before_what_was_kept",
        "what was delayed overtakes what was put before it and waited for its publisher to go on",
        Search("putting", range(50, 51), "inversion read"),
    ),
    Guard(
        "ones_own_pauses_alone",
        "the same, where who shows it has started, or looked away, while the publisher was held",
        Search("putting", range(3020061, 3020062), "inversion read"),
    ),
    Guard(
        "refused_keeps_its_lane",
        "what one member of a pool has behind a message that it refuses comes before that message to another one",
        Named("tests/unit/test_work_dispatch.py", "test_what_another_member_of_the_pool_may_get_is_overtaken_by_nothing_of_its_lane"),
    ),
    Guard(
        "woken_laid_to_sleep",
        "what stands in a lane behind a message whose next try is due overtakes it while another subscriber gives that back",
        Named("tests/unit/test_queue_woken.py", "test_what_was_woken_is_not_laid_to_sleep_by_another_subscriber"),
    ),
)
LOG_GUARDS: Final = (
    Guard(
        "another_topic_unnoticed",
        "positions in a topic count in another one that has its name by now",
        Search("log", range(11, 17), "duplicate"),
    ),
    Guard(
        "jump_over_what_is_lost",
        "what retention took before it was delivered is passed over without a word",
        Named("tests/unit/test_starts.py", "test_a_position_outside_the_log_stops_and_never_jumps[below]"),
    ),
    Guard(
        "cut_unnoticed",
        "what brokers that went back have lost is taken for delivered",
        Named(CUT, "test_what_kafka_has_forgotten_is_delivered_again_by_whoever_lived_through_it"),
    ),
    Guard(
        "old_leader_believed",
        "what was entered since a broker was cut off from the others is delivered again",
        Named(CUT, "test_whoever_takes_over_by_the_word_of_a_leader_that_is_cut_off_looks_again"),
    ),
    Guard(
        "old_output_believed",
        "outputs that a broker cut off from the others does not know are written again",
        Named("tests/unit/test_old_leaders.py", "test_outputs_that_an_old_leader_does_not_know_are_not_written_again[2]"),
    ),
    Guard(
        "lost_decisions_kept",
        "rows of a run that was decided anew, since brokers had lost the first decision, count as aborted",
        Named(
            "tests/unit/test_unit_decisions.py",
            "test_where_kafka_went_back_and_has_grown_beyond_before_anybody_asks_what_stands_there_now_counts",
        ),
    ),
    Guard(
        "anchors_unread",
        "what was written where a log lost its end, and below the position, is passed over",
        Named(ANCHORS, "test_a_topic_route_does_not_read_on_in_a_log_that_was_cut_and_has_grown_beyond_its_position"),
    ),
    Guard(
        "new_leaders_believed",
        "the same, where the leader that lacks the end comes after the take-over",
        Named(ANCHORS, "TestAnchorage::test_a_leader_that_comes_after_the_take_over_is_held_against_what_lay_below_the_position"),
    ),
    Guard(
        "lost_clients_kept",
        "a worker whose client has forgotten all brokers is idle for ever",
        Named("tests/integration/test_lost_clients.py", "test_a_worker_begins_anew"),
    ),
)
REDRIVE_GUARDS: Final = (
    Guard("every_order_obeyed", "an order that is read twice has two effects", Search("topic", range(734, 735))),
    Guard(
        "taken_back_with_the_outputs",
        "a stray COMMIT shows that a dead letter is taken back, and not the output",
        Named("tests/unit/test_torn_deaths.py", "test_a_letter_is_taken_back_behind_the_output_that_makes_it_void"),
    ),
    Guard(
        "trimmed_beside_redrives",
        "the only word of a redrive's effect is deleted before the monitor has it",
        Named("tests/unit/test_redrive_orders.py", "test_nothing_is_trimmed_while_a_redrive_is_not_entered"),
    ),
)
GUARDS: Final = (*TOPIC_GUARDS, *TABLE_GUARDS, *CAPTURE_GUARDS, *LOG_GUARDS, *QUEUE_GUARDS, *PUTTING_GUARDS, *REDRIVE_GUARDS)
