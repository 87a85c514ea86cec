"""kernellat: how long launches and blocks take."""
