"""A run that is paused is neither done nor crashed: the next one goes on with what it recorded."""

import backstay


def test_what_a_paused_run_recorded_is_not_done_again() -> None:
    done: list[int] = []

    def pay() -> str:
        done.append(1)
        return "paid"

    with backstay.open("memory://") as store:
        for _ in range(3):
            with store.run("job") as run:
                assert run.call("pay", pay, args=1) == "paid"
                run.pause()
        assert done == [1]
        assert store.crashed() == []
        assert [info.status for info in store.sessions()] == ["in_progress"]
        with store.run("job") as run:
            assert run.resumed
            run.call("pay", pay, args=1)
        assert done == [1]
