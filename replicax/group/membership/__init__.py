"""Elastic groups: which processes take part in the next collective when some are lost and others come."""

from replicax.group.membership.meeting import Meeting as Meeting, MemberLostError as MemberLostError, Quorum as Quorum
